"""A request lists everything that is run; a mistake in it is one sentence."""

import pytest

from rgat.experiments.request import BUDGETS, make_request, read_request
from rgat.training.configuration import VARIANTS

SHIPPED = """
data = "aifb"
model = "additive WIRGAT"
command = "rgat reproduce aifb"
selected_on = "trial 3 of 50"
seeds = 7
[config]
hidden_channels = 16
learning_rate = 0.01
max_epochs = 40
scope = "within"
score = "additive"
[paper]
test = 0.9683
"""


def test_budgets_fill_in_what_is_not_asked():
    request = make_request("node", {"data": "aifb", "budget": "paper", "trials": None})
    assert (request.budget, request.trials, request.seeds, request.folds) == ("paper", *BUDGETS["node"]["paper"])
    assert request.models == tuple(VARIANTS)
    assert (request.max_epochs, request.patience) == (400, 30)
    assert make_request("graph", {"data": "tox21"}).budget == "small"
    assert make_request("graph", {"data": "tox21"}).max_epochs == 100


@pytest.mark.parametrize("change", [{"trials": 51}, {"seeds": 3}, {"folds": 2}, {"max_epochs": 9}, {"search_seed": 1}])
def test_any_other_number_makes_the_budget_custom(change):
    assert make_request("node", {"data": "aifb", "budget": "small", **change}).budget == "custom"
    assert make_request("node", {"data": "aifb", "budget": "small", "trials": 50}).budget == "small"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"budget": "tiny"}, '`budget` must be "smoke", "small", "paper" or "custom", got "tiny"'),
        ({"models": ["RGNC"]}, r'`model` must be .* did you mean "RGCN"\?'),
        ({"models": []}, "`models` must name at least one model"),
        ({"models": "RGCN"}, "`models` must be a list of names, got 'RGCN'"),
        ({"trials": 0}, "`trials` must be an integer of at least 1, got 0"),
        ({"seeds": "many"}, "`seeds` must be an integer of at least 1, got 'many'"),
        ({"folds": 6}, "`folds` must be at most 5 for node tasks, got 6"),
        ({"search_seed": -1}, "`search_seed` must be an integer of at least 0"),
        ({"fixed": 3}, "`fixed` must be a table, got 3"),
        ({"setting": 3}, "`setting` must be a name, got 3"),
        ({"setting": "../Evil"}, "`setting` must be small letters and digits, with hyphens between"),
        ({"models": [["RGCN"]]}, "`models` must be a list of names"),
        ({"search_seed": 5_000_000}, "`search_seed` must be at most 4,000,000"),
        ({"setting": "x", "fixed": {"batch_norm": "no"}}, "`batch_norm` must be true or false, got"),
        ({"setting": "x", "fixed": {"learning_rate": "0.1"}}, "`learning_rate` must be a finite number, got"),
        ({"fixed": {"heads": 2}}, r"`setting` must name the configuration that \[fixed\] makes"),
        ({"setting": "x", "fixed": {"head": 2}}, r'`key in \[fixed\]` must be .* did you mean "heads"\?'),
        ({"selected": {"lerning_rate": 1}}, r'`key in \[config\]` must be .* did you mean "learning_rate"\?'),
        (
            {"selected": {"layer": "rgat"}, "models": ["RGCN"]},
            r'`layer` in \[config\] must be "rgcn" for RGCN, got "rgat"',
        ),
    ],
)
def test_impossible_requests_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        make_request("node", {"data": "aifb", **asked})


def test_a_fixed_option_is_not_searched_and_stays_as_it_is():
    request = make_request("node", {"data": "aifb", "setting": "two-heads", "fixed": {"heads": 2}})
    assert "heads" not in request.priors("additive ARGAT")
    assert request.trial_config("additive ARGAT", {"bias": True})["heads"] == 2
    assert "heads" not in request.trial_config("RGCN", {"bias": True})


def test_a_selected_configuration_takes_the_place_of_a_search(tmp_path):
    path = tmp_path / "additive-wirgat.toml"
    path.write_text(SHIPPED)
    request = make_request("node", read_request(path))
    assert (request.trials, request.folds, request.seeds, request.budget) == (0, 0, 7, "custom")
    config = request.selected_config("additive WIRGAT")
    assert config["num_bases"] is config["patience"] is config["num_attention_bases"] is None
    assert config["max_epochs"] == 40
    path.write_text(SHIPPED.replace("selected_on", "# selected_on"))
    with pytest.raises(ValueError, match="must have selected_on beside its configuration"):
        read_request(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trails = 3", r'`key in plan.toml` must be .* got "trails"; did you mean "trials"\?'),
        ("trials = ", "plan.toml must be TOML"),
        ('[config]\nheads = 1\n[our]\nx = 1\ndata = "aifb"', r'got "our"; did you mean "ours"\?'),
        ("\x00", "plan.toml must be TOML"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_request(path)
    with pytest.raises(ValueError, match="must be a TOML file that can be read"):
        read_request(tmp_path / "nowhere.toml")
