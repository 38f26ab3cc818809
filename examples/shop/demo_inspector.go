package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// inspector looks for the keys of the story where an operator would, and settles
// what the crash has left open.
func (s *story) inspector() {
	s.chapter("7 inspector")
	status, _ := s.page(http.MethodGet, "", nil, "")
	s.row("the page, asked for by nobody", "401", fmt.Sprint(status))
	s.row("the payment of the hang-up", "success", s.stateOf(s.hungUpOn))
	s.row("the crashed payment", "unknown", s.stateOf(s.crashed))
	s.settle(s.crashed)
	s.row("after Resolve as success", "success", s.stateOf(s.crashed))
	s.row("retry of the crashed payment", "replay of 201", s.send(context.Background(), s.crashed).String())
}

// stateOf returns what the inspector says of a request's key.
func (s *story) stateOf(in request) string {
	_, body := s.page(http.MethodGet, entryQuery(in), nil, "olga")
	return firstOf(body, `<p class="lead"><span class="state (\w+)">`)
}

// settle sends the form on the page of a request's key, as its button does.
func (s *story) settle(in request) {
	_, body := s.page(http.MethodGet, entryQuery(in), nil, "olga")
	s.page(http.MethodPost, "", url.Values{
		"id":     {firstOf(body, `name="id" value="([^"]*)"`)},
		"owner":  {firstOf(body, `name="owner" value="([^"]*)"`)},
		"action": {"success"},
		"answer": {"response"},
		"status": {fmt.Sprint(http.StatusCreated)},
		"reason": {"the provider has the payment in its books"},
	}, "olga")
}

func entryQuery(in request) string {
	return "?" + url.Values{
		"page": {"search"}, "method": {http.MethodPost}, "path": {in.path}, "principal": {tokens[in.token]}, "key": {in.key},
	}.Encode()
}

// page asks for a page of the inspector as an operator, or as nobody.
func (s *story) page(method, query string, form url.Values, operator string) (status int, body string) {
	req, err := http.NewRequest(method, s.base+inspectorPath+query, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if operator != "" {
		req.SetBasicAuth(operator, operators[operator])
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(page)
}

// firstOf returns what a pattern finds first in a page.
func firstOf(body, pattern string) string {
	found := regexp.MustCompile(pattern).FindStringSubmatch(body)
	if found == nil {
		return "not on the page"
	}
	return found[1]
}
