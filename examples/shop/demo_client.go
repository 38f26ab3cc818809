package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// client speaks to one shop.
type client struct {
	base string
	http *http.Client
}

// newClient returns a client that uses each connection once: net/http repeats
// a request with an Idempotency-Key by itself when a used connection breaks,
// and the story wants to do that itself.
func newClient(base string) client {
	return client{base: base, http: &http.Client{
		Timeout:   2 * patience,
		Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

type request struct {
	method                 string // POST where it is empty
	path, token, key, body string
	prefer                 string
}

func (c client) send(ctx context.Context, in request) answer {
	if in.method == "" {
		in.method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, in.method, c.base+in.path, strings.NewReader(in.body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+in.token)
	req.Header.Set("Content-Type", "application/json")
	if in.key != "" {
		req.Header.Set("Idempotency-Key", in.key)
	}
	if in.prefer != "" {
		req.Header.Set("Prefer", in.prefer)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, replayed: resp.Header.Get("Idempotent-Replayed") == "true", body: string(body), err: err}
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct {
			Code string `json:"code"`
		}
		_ = json.Unmarshal(body, &problem)
		a.code = problem.Code
	}
	return a
}

type answer struct {
	status   int
	code     string // of a refusal
	replayed bool
	body     string
	err      error
}

func (a answer) String() string {
	switch {
	case a.err != nil:
		return "no answer"
	case a.replayed:
		return fmt.Sprintf("replay of %d", a.status)
	case a.code != "":
		return fmt.Sprintf("%d %s", a.status, a.code)
	case a.status < 300:
		return fmt.Sprintf("%d first", a.status)
	}
	return fmt.Sprint(a.status)
}
