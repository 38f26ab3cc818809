package inspect

import (
	"errors"
	"net/http"

	"github.com/idempotent-go/idempotent"
)

// entryPage is one key's life.
type entryPage struct {
	head
	Name    storeName
	LogKey  string
	Trouble string // why there is no entry to show; "" where there is one
	Done    string // what an action has done, where the entry agrees

	Entry     idempotent.Entry
	State     state
	Abandoned bool // its lease lapsed: nobody has recorded anything
	TakenOver bool // claimed more than once
	Result    result

	Who     string // who may act; "" where this one may only read: then no form is shown
	Actions []action
	ID      string // of the key, for the forms
	Owner   string // as read now, for the forms
}

// Can reports whether the page offers an action.
func (p entryPage) Can(a action) bool {
	for _, can := range p.Actions {
		if can == a {
			return true
		}
	}
	return false
}

func (i *inspector) entry(w http.ResponseWriter, r *http.Request) {
	name, ok := decodeText(r.URL.Query().Get("id"))
	if !ok || name == "" {
		i.refuse(w, r, refusalNoPage)
		return
	}
	p := entryPage{head: newHead("Key"), Name: parseName(name), LogKey: idempotent.LogKey(name), ID: encodeText(name)}
	done := action(r.URL.Query().Get("done"))
	e, found, err := i.load(r.Context(), name)
	status := http.StatusOK
	switch {
	case errors.Is(err, idempotent.ErrCorrupt):
		p.Trouble = "The record of this key cannot be read. Nothing runs under the key and repeats are refused until it is freed."
		p.Actions = []action{actionForget}
	case errors.Is(err, idempotent.ErrNewerFormat):
		p.Trouble = "A newer release has written this record; an instance of that release can show it."
	case err != nil:
		p.Trouble = "The store did not answer. The log says why; nothing is known of the key for now."
		status = http.StatusServiceUnavailable
	case !found:
		p.Trouble = "Nothing is recorded under this key: it was never used, its record is past its retention, or it was freed."
		if done == actionFree || done == actionForget {
			p.Done = "The key is free. The next request with it runs."
		} else {
			status = http.StatusNotFound
		}
	default:
		p.read(e, done)
	}
	p.Who = i.whoMay(r)
	i.write(w, r, status, "entry", p)
}

// read fills the page with an entry.
func (p *entryPage) read(e idempotent.Entry, done action) {
	p.Entry, p.State, p.Result, p.Owner = e, stateOf(&e), newResult(e), encodeText(e.Owner)
	p.Abandoned = e.Abandoned()
	p.TakenOver = p.State == running && e.Timestamp.After(e.Claimed)
	switch p.State {
	case unknown:
		p.Actions = []action{actionSuccess, actionFailed, actionFree}
	case success, failed:
		p.Actions = []action{actionForget}
		if done == actionSuccess && p.State == success || done == actionFailed && p.State == failed {
			p.Done = "The outcome is settled. Repeats are answered with it from now on."
		}
	}
}
