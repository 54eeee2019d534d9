// Starts the viewer, after all views are registered.
"use strict";

(() => {
  const { h, render, Component, html } = coevo;

  /** An error boundary: shows the error of a view and a link to the list of runs. */
  class Guarded extends Component {
    static getDerivedStateFromError(error) {
      return { error };
    }

    componentDidMount() {
      window.addEventListener("hashchange", () => this.setState({ error: null }));
    }

    render(_, { error }) {
      if (!error) return html`<${coevo.Shell} />`;
      console.error(error);
      return html`<main><h1>This page failed</h1>
        <p>It could not be drawn: <code>${String(error.message || error)}</code></p>
        <p><a href="#/">All runs</a></p></main>`;
    }
  }

  const app = document.getElementById("app");
  app.textContent = "";
  render(h(Guarded), app);
})();
