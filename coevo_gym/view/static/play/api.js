// Requests to the server; each one sends the token of the page.
"use strict";

(() => {
  const play = (coevo.play = { boards: {} });
  const token = document.querySelector('meta[name="play-token"]').content;

  /** A refused request: the message, and the current episode if it has changed. */
  class Refused extends Error {
    constructor(status, told) {
      super(told.message || `The server answered with status ${status}.`);
      this.status = status;
      this.state = told.state || null;
    }
  }

  /** Send a GET request for `path`, or a POST request with a `body`. */
  play.ask = async (path, body) => {
    let response;
    try {
      response = await fetch(`api/play/${path}`, {
        method: body === undefined ? "GET" : "POST",
        headers: {
          "X-Play-Token": token,
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        credentials: "omit",
      });
    } catch {
      throw new Error("The server is not running. Start `coevo play --web` again.");
    }
    const told = await response.json().catch(() => ({}));
    if (!response.ok) throw new Refused(response.status, told);
    return told;
  };

  /** The newest state of an episode, with the past steps that the page knew before. */
  play.merged = (before, now) => ({
    ...now,
    past: [...((before && before.past) || []).slice(0, now.from), ...now.past],
  });
})();
