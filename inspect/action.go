package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/idempotent-go/idempotent"
)

const (
	// maxForm bounds a form, with the answer that repeats are to get.
	maxForm = 1 << 20

	// maxReason bounds a reason, in bytes: it stands in one line of a log.
	maxReason = 1000
)

// action is what somebody may do to a key.
type action string

const (
	actionSuccess action = "success" // an unknown outcome: it happened
	actionFailed  action = "failed"  // an unknown outcome: it did not
	actionFree    action = "free"    // an unknown outcome: forget it and run again
	actionForget  action = "forget"  // a known outcome or a record that cannot be read: the same, by hand
)

// order is an action with all that it needs.
type order struct {
	action action
	name   string
	owner  string // as read when the page was drawn; "" where the record cannot be read
	reason string
	result string // what repeats are to get; "" for nothing
}

// act carries out what a form asks for.
func (i *inspector) act(w http.ResponseWriter, r *http.Request) {
	who := i.whoMay(r)
	if who == "" {
		i.refuse(w, r, refusalReadOnly)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		i.refuse(w, r, refusalForm)
		return
	}
	o, refused := newOrder(r.PostForm)
	if refused != nil {
		i.refuse(w, r, *refused)
		return
	}
	refused = refusalOf(i.carryOut(r.Context(), o))
	outcome := "done"
	if refused != nil {
		outcome = refused.code
	}
	i.log().LogAttrs(r.Context(), slog.LevelWarn, "idempotent: inspector action",
		slog.String("key", idempotent.LogKey(o.name)), slog.String("owner", o.owner), slog.String("who", who),
		slog.String("action", string(o.action)), slog.String("reason", o.reason), slog.String("outcome", outcome))
	if refused != nil {
		refused.Back = entryLink(o.name)
		i.refuse(w, r, *refused)
		return
	}
	redirect(w, entryLink(o.name, "done", string(o.action)))
}

// newOrder reads a form.
func newOrder(form url.Values) (order, *refusal) {
	name, okName := decodeText(form.Get("id"))
	owner, okOwner := decodeText(form.Get("owner"))
	o := order{action: action(form.Get("action")), name: name, owner: owner, reason: strings.TrimSpace(form.Get("reason"))}
	switch {
	case !okName, !okOwner, name == "":
		return order{}, &refusalForm
	case o.reason == "":
		return order{}, &refusalNoReason
	case len(o.reason) > maxReason:
		return order{}, &refusalLongReason
	}
	switch o.action {
	case actionForget:
	case actionSuccess, actionFailed, actionFree:
		if owner == "" {
			return order{}, &refusalForm
		}
	default:
		return order{}, &refusalForm
	}
	result, refused := newAnswer(o.action, form)
	o.result = result
	return o, refused
}

// newAnswer makes the result that repeats are to get, "" where the form names
// none.
func newAnswer(a action, form url.Values) (string, *refusal) {
	// Forms end lines with CR LF whatever was typed.
	text := strings.ReplaceAll(form.Get("body"), "\r\n", "\n")
	switch kind := form.Get("answer"); {
	case kind == "":
		return "", nil
	case kind == "response" && (a == actionSuccess || a == actionFailed):
		status, err := strconv.Atoi(form.Get("status"))
		if err != nil {
			return "", &refusalAnswer
		}
		h := http.Header{}
		if json.Valid([]byte(text)) {
			h.Set("Content-Type", "application/json")
		}
		result, err := idempotent.EncodeResponse(status, h, []byte(text))
		if err != nil {
			return "", &refusalAnswer
		}
		return result, nil
	case kind == "json" && a == actionSuccess && json.Valid([]byte(text)):
		result, err := idempotent.EncodeValue(json.RawMessage(text))
		if err != nil {
			return "", &refusalAnswer
		}
		return result, nil
	case kind == "failure" && a == actionFailed:
		return idempotent.EncodeFailure(errors.New(text)), nil
	}
	return "", &refusalAnswer
}

func (i *inspector) carryOut(ctx context.Context, o order) error {
	switch o.action {
	case actionSuccess:
		return i.guard.Resolve(ctx, o.name, o.owner, idempotent.ClassSuccess, o.result)
	case actionFailed:
		return i.guard.Resolve(ctx, o.name, o.owner, idempotent.ClassFailure, o.result)
	case actionFree:
		return i.guard.Resolve(ctx, o.name, o.owner, idempotent.ClassRelease, "")
	}
	return i.forget(ctx, o)
}

// forget deletes what cannot be resolved: a record that still cannot be read,
// or the known outcome that the page has shown. An outcome that was unknown when
// the page was drawn never comes here, so that one which has become known since
// is not run again. Deleting does not compare: should the retention end and the
// key be claimed between the look and the deletion, the claim is lost.
func (i *inspector) forget(ctx context.Context, o order) error {
	e, found, err := i.load(ctx, o.name)
	switch {
	case errors.Is(err, idempotent.ErrCorrupt) && o.owner == "":
	case err != nil:
		return err
	case !found:
		return nil
	case o.owner == "", e.Owner != o.owner, e.Unknown:
		return idempotent.ErrLost
	case e.Status == idempotent.Pending:
		return &idempotent.InFlightError{Since: e.Timestamp, Trace: e.Trace}
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	err = idempotent.Delete(ctx, i.store, o.name)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		i.logFailed(ctx, "delete", o.name, err)
		return &idempotent.StoreError{Op: "delete", Err: err}
	}
	return err
}
