"""The official backends: installation, function dispatcher and conversations."""
