"""Knowledge graphs: RDF files to graphs with labelled nodes."""
