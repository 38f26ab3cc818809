package inspect

import (
	"errors"
	"html/template"
	"net/http"

	"github.com/idempotent-go/idempotent"
)

// refusal is a page that says what was not done, and what to do about it.
type refusal struct {
	status  int
	code    string // in the log
	Heading string
	Text    string
	Back    template.URL // to look again; "" for the overview
}

var (
	refusalMethod = refusal{
		http.StatusMethodNotAllowed, "method", "Method not allowed",
		"The page is read with GET; its forms are sent with POST.", "",
	}
	refusalNoPage = refusal{
		http.StatusNotFound, "no-page", "No such page",
		"The address names no page, or a key that cannot be read from it. Begin at the overview.", "",
	}
	refusalCrossOrigin = refusal{
		http.StatusForbidden, "cross-origin", "Refused: sent from another site",
		"The form was sent from another site, and nothing was changed. If that was you, open the key here and use its own form.", "",
	}
	refusalReadOnly = refusal{
		http.StatusForbidden, "read-only", "You may only read",
		"Nothing was changed. Whoever runs this program decides who may settle outcomes and free keys.", "",
	}
	refusalForm = refusal{
		http.StatusBadRequest, "form", "The form cannot be read",
		"Nothing was changed. Open the key again and use its form.", "",
	}
	refusalNoReason = refusal{
		http.StatusBadRequest, "no-reason", "A reason is missing",
		"Nothing was changed. Say why, for whoever reads the log.", "",
	}
	refusalLongReason = refusal{
		http.StatusBadRequest, "long-reason", "The reason is too long",
		"Nothing was changed. Use at most 1,000 bytes.", "",
	}
	refusalAnswer = refusal{
		http.StatusBadRequest, "answer", "The answer for repeats does not fit",
		"Nothing was changed. An HTTP answer needs a status from 200 to 999, and no body with 204, 205 and 304; a value must be JSON and goes with success; the text of an error goes with failure.", "",
	}
	refusalLost = refusal{
		http.StatusConflict, "lost", "The key has moved on",
		"Nothing was changed: since the page was drawn another execution took the key, or its outcome became known. Look at it again before you decide.", "",
	}
	refusalInFlight = refusal{
		http.StatusConflict, "in-flight", "The operation is running",
		"Nothing was changed: an execution holds the key and will record its outcome. If its process is dead, the lease lapses and the outcome can then be settled here.", "",
	}
	refusalCorrupt = refusal{
		http.StatusConflict, "corrupt", "The record cannot be read",
		"Nothing was changed. A record that cannot be read can only be freed.", "",
	}
	refusalNewer = refusal{
		http.StatusConflict, "newer-format", "A newer release has written this record",
		"Nothing was changed. Use the page of an instance of that release.", "",
	}
	refusalUnsupported = refusal{
		http.StatusConflict, "unsupported", "This store cannot delete a key",
		"Nothing was changed. Only unknown outcomes can be freed in it.", "",
	}
	refusalStore = refusal{
		http.StatusServiceUnavailable, "store-error", "The store did not answer",
		"It is not known whether anything was changed. Look at the key again; the same action may be repeated.", "",
	}
)

// refusalOf says what became of an action that failed; nil for no error.
func refusalOf(err error) *refusal {
	var r refusal
	var inFlight *idempotent.InFlightError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, idempotent.ErrLost):
		r = refusalLost
	case errors.As(err, &inFlight):
		r = refusalInFlight
	case errors.Is(err, idempotent.ErrCorrupt):
		r = refusalCorrupt
	case errors.Is(err, idempotent.ErrNewerFormat):
		r = refusalNewer
	case errors.Is(err, idempotent.ErrInvalid):
		r = refusalForm
	case errors.Is(err, errors.ErrUnsupported):
		r = refusalUnsupported
	default:
		r = refusalStore
	}
	return &r
}

type refusalPage struct {
	head
	refusal
}

func (i *inspector) refuse(w http.ResponseWriter, r *http.Request, why refusal) {
	p := refusalPage{head: newHead(why.Heading), refusal: why}
	i.write(w, r, why.status, "refusal", p)
}
