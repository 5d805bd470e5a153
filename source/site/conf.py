"""Sphinx's settings; `tools/website.py` puts this file beside the pages that it has prepared."""

project = "Distributed data parallel training"
author = "the course authors"
copyright = "the course authors, MIT license"
extensions = ["myst_nb", "sphinx_copybutton"]
html_theme = "furo"
html_title = "DDP course"
html_static_path = ["_static"]
html_extra_path = ["extra"]
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_js_files = [("predict.js", {"defer": "defer"}), ("live.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#00598c", "color-brand-content": "#00598c"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f2", "color-brand-content": "#7cc4f2"},
}
exclude_patterns = ["extra", "_static"]
nb_execution_mode = "off"  # what is shown was run by tools/build.py
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
nb_merge_streams = True
myst_heading_anchors = 3
myst_links_external_new_tab = False
copybutton_selector = "div.cell_input div.highlight pre, div.highlight-bash pre"
suppress_warnings = ["misc.highlighting_failure"]  # the messages of a launch are no tracebacks
