// Package inspect is a page for the people who look after a store: what runs,
// what became of the rest over the last hour, which outcomes are unknown and
// wait for a decision, and one key's life with what repeats of it are answered.
//
//	mux.Handle("/debug/idempotency", admins(inspect.New(guard, store, inspect.WithAuthorize(whoIs))))
//
// Mount it behind your own authentication, at any path, with or without
// [http.StripPrefix]: whoever can read the page can read principals, clients'
// keys and recorded answers. Answers are shown as text, at most 16 KiB of each,
// and fields that may carry secrets are hidden; bodies are not searched for
// secrets. The page needs no JavaScript and loads nothing from elsewhere. Its
// addresses name keys, in base64: keep queries out of access logs where keys
// do not belong there.
//
// It changes nothing unless [WithAuthorize] is given. Then those whom the
// function names can settle unknown outcomes and free keys, each with a reason,
// which is logged together with who gave it. Requests that a browser sends on
// behalf of another site are refused.
//
// Lists need a store that is an [idempotent.Lister]. Over others, single keys
// can still be looked up. A page reads at most 10,000 entries, for about three
// seconds; where there are more it says so, and its counts are of those it has
// read.
package inspect

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/idempotent-go/idempotent"
)

const (
	// loadTimeout bounds how long a page waits for the store, once; listEnough
	// how long it goes on to read a list.
	loadTimeout = 5 * time.Second
	listEnough  = 3 * time.Second
)

// AuthorizeFunc names the person behind a request who may change what the
// store holds. An error, or no name, means that this one may only read; the
// error is not shown to anybody. It must be safe for concurrent use.
type AuthorizeFunc func(*http.Request) (who string, err error)

// Option is an optional setting of [New].
type Option func(*inspector)

// WithAuthorize lets those whom f names settle unknown outcomes and free keys.
// The default is that nobody may. It panics on nil.
func WithAuthorize(f AuthorizeFunc) Option {
	if f == nil {
		panic("inspect: WithAuthorize: the function is nil; leave the option out for a page that only reads")
	}
	return func(i *inspector) { i.authorize = f }
}

// WithLogger sets where actions and unreadable entries are logged, the former
// at level Warn with the attributes key, owner, who, action, reason and outcome.
// The default, also for nil, is [slog.Default] at the time of the event. A key is
// logged as [idempotent.LogKey], never as it is.
func WithLogger(l *slog.Logger) Option {
	return func(i *inspector) { i.logger = l }
}

// New returns the page over store, which must be the one that guard was made
// with: the page reads from store and settles through guard, whose retentions
// count. The handler is safe for concurrent use and keeps nothing between
// requests. New panics where guard or store is nil.
func New(guard *idempotent.Guard, store idempotent.Store, opts ...Option) http.Handler {
	if guard == nil {
		panic("inspect: New: the guard is nil; idempotent.New makes one")
	}
	if v := reflect.ValueOf(store); store == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		panic("inspect: New: the store is nil; give the one that the guard was made with")
	}
	i := &inspector{guard: guard, store: store}
	for _, o := range opts {
		if o != nil {
			o(i)
		}
	}
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.refuse(w, r, refusalCrossOrigin)
	}))
	return crossOrigin.Handler(i)
}

type inspector struct {
	guard     *idempotent.Guard
	store     idempotent.Store
	authorize AuthorizeFunc // nil: nobody may change anything
	logger    *slog.Logger  // nil: slog.Default
}

// ServeHTTP answers a request that does not come from another site. Which page
// is meant stands in the query alone, so that links work under every path.
func (i *inspector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		i.read(w, r)
	case http.MethodPost:
		i.act(w, r)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		i.refuse(w, r, refusalMethod)
	}
}

func (i *inspector) read(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Query().Get("page") {
	case "":
		i.overview(w, r)
	case "running":
		i.table(w, r, "Running claims", running)
	case "unknown":
		i.table(w, r, "Unknown outcomes", unknown)
	case "search":
		i.search(w, r)
	case "entry":
		i.entry(w, r)
	case "style":
		ownHeader(w.Header(), "text/css; charset=utf-8")
		_, _ = w.Write(style)
	default:
		i.refuse(w, r, refusalNoPage)
	}
}

// whoMay returns the name under which r may change things, "" where it may not.
func (i *inspector) whoMay(r *http.Request) string {
	if i.authorize == nil {
		return ""
	}
	who, err := i.authorize(r)
	if err != nil {
		return ""
	}
	return who
}

// load reads one entry from the store.
func (i *inspector) load(ctx context.Context, name string) (idempotent.Entry, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	e, found, err := i.store.Load(ctx, name)
	if err != nil {
		i.logFailed(ctx, "load", name, err)
	}
	return e, found, err
}

func (i *inspector) log() *slog.Logger {
	if i.logger != nil {
		return i.logger
	}
	return slog.Default()
}

// logFailed logs what the store has said; the page shows fixed texts only.
func (i *inspector) logFailed(ctx context.Context, step, name string, err error) {
	i.log().LogAttrs(ctx, slog.LevelError, "idempotent: inspector: the store failed",
		slog.String("step", step), slog.String("key", logName(name)), slog.String("err", withoutName(name, err)))
}
