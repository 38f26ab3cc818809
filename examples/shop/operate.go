package main

import (
	"errors"
	"net"
	"net/http"

	"github.com/idempotent-go/idempotent/inspect"
)

// inspectorPath is where operators look after the keys.
const inspectorPath = "/debug/idempotency/"

// operators stands for the authentication of the people who run the shop, as
// tokens does for its users: a name and its password, for HTTP Basic. A real shop
// has them in a directory, and this page on a port of its own.
var operators = map[string]string{"olga": "olga-password"}

// operate adds the inspector to the shop. Those who may read it may also settle
// outcomes; the log tells who did.
func (v *service) operate(shop http.Handler) http.Handler {
	page := inspect.New(v.guard, v.store, inspect.WithLogger(v.log), inspect.WithAuthorize(operatorOf))
	mux := http.NewServeMux()
	mux.Handle("/", shop)
	mux.HandleFunc(inspectorPath, func(w http.ResponseWriter, r *http.Request) {
		if _, err := operatorOf(r); err != nil {
			w.Header().Set("WWW-Authenticate", `Basic realm="operators of the shop"`)
			refuse(w, http.StatusUnauthorized, "log in as olga, with olga-password")
			return
		}
		page.ServeHTTP(w, r)
	})
	return mux
}

// inspectorURL returns the link to the page of a shop that listens on l.
func inspectorURL(l net.Listener) string {
	return "http://olga:olga-password@" + l.Addr().String() + inspectorPath
}

func operatorOf(r *http.Request) (string, error) {
	name, password, _ := r.BasicAuth()
	if want, ok := operators[name]; !ok || password != want {
		return "", errors.New("nobody who operates the shop")
	}
	return name, nil
}
