package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// tokens stands for authentication, which is not the subject here. What
// matters: a token leads to a stable user id. Ada has two, as after a refresh,
// and a retry with the new one is still hers. A real shop verifies a session
// or a signed token, and has no secrets in its source.
var tokens = map[string]string{
	"ada-token-1": "user-ada",
	"ada-token-2": "user-ada",
	"bob-token-1": "user-bob",
}

type order struct {
	ID       string    `json:"id"`
	Item     string    `json:"item"`
	Quantity int       `json:"quantity"`
	Payments []payment `json:"payments"`

	user string
}

type payment struct {
	ID          string `json:"id"`
	Order       string `json:"order"`
	AmountCents int64  `json:"amount_cents"`
}

// shop is an order book in memory. A real one keeps it in a database that
// outlives the process, as keys in Redis do.
type shop struct {
	charge chargeFunc

	mu     sync.Mutex
	orders []*order // guarded by mu, their payments too
}

// handler routes requests. Once is the middleware that makes an operation
// happen once; it stands inside of authentication, because keys are told apart
// by user, and around each route that changes something.
func (s *shop) handler(once func(http.Handler) http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once(http.HandlerFunc(s.createOrder)))
	mux.Handle("POST /payments", once(http.HandlerFunc(s.createPayment)))
	mux.HandleFunc("GET /orders", s.listOrders)
	mux.HandleFunc("GET /orders/{id}", s.showOrder)
	return authenticate(mux)
}

func (s *shop) createOrder(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Item     string `json:"item"`
		Quantity int    `json:"quantity"`
	}
	if err := read(r, &in); err != nil {
		refuse(w, http.StatusBadRequest, `the body must be JSON like {"item":"tea","quantity":2}`)
		return
	}
	if in.Item == "" || in.Quantity < 1 {
		refuse(w, http.StatusUnprocessableEntity, "an order needs an item and a quantity of at least 1")
		return
	}
	o := order{ID: newID("ord"), Item: in.Item, Quantity: in.Quantity, Payments: []payment{}, user: userOf(r)}
	s.mu.Lock()
	s.orders = append(s.orders, &o)
	s.mu.Unlock()
	w.Header().Set("Location", "/orders/"+o.ID)
	write(w, http.StatusCreated, o)
}

// createPayment shows what a status says of the operation: 4xx is a definite
// no, 5xx may have happened and is never run again.
func (s *shop) createPayment(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Order       string `json:"order"`
		AmountCents int64  `json:"amount_cents"`
	}
	if err := read(r, &in); err != nil {
		refuse(w, http.StatusBadRequest, `the body must be JSON like {"order":"ord-…","amount_cents":1250}`)
		return
	}
	if in.AmountCents < 1 {
		refuse(w, http.StatusUnprocessableEntity, "a payment needs a positive amount_cents")
		return
	}
	if _, ok := s.find(userOf(r), in.Order); !ok {
		refuse(w, http.StatusNotFound, "no such order")
		return
	}
	p := payment{ID: newID("pay"), Order: in.Order, AmountCents: in.AmountCents}
	switch err := s.charge(r.Context(), p); {
	case errors.Is(err, errDeclined):
		refuse(w, http.StatusPaymentRequired, "the payment was declined")
		return
	case err != nil:
		refuse(w, http.StatusBadGateway, "the payment provider gave no clear answer")
		return
	}
	s.addPayment(p)
	w.Header().Set("Location", "/orders/"+p.Order)
	write(w, http.StatusCreated, p)
}

func (s *shop) listOrders(w http.ResponseWriter, r *http.Request) {
	list := []order{}
	s.mu.Lock()
	for _, o := range s.orders {
		if o.user == userOf(r) {
			list = append(list, *o)
		}
	}
	s.mu.Unlock()
	write(w, http.StatusOK, list)
}

func (s *shop) showOrder(w http.ResponseWriter, r *http.Request) {
	o, ok := s.find(userOf(r), r.PathValue("id"))
	if !ok {
		refuse(w, http.StatusNotFound, "no such order")
		return
	}
	write(w, http.StatusOK, o)
}

func (s *shop) find(user, id string) (order, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.orders {
		if o.ID == id && o.user == user {
			return *o, true
		}
	}
	return order{}, false
}

func (s *shop) addPayment(p payment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.orders {
		if o.ID == p.Order {
			o.Payments = append(o.Payments, p)
		}
	}
}

type userKey struct{}

// authenticate refuses who is not known. It stands outside of the idempotency
// layer: its refusals are never recorded, and a user whose rights are gone is
// refused before any recorded answer is looked at.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		user, ok := tokens[token]
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "send Authorization: Bearer ada-token-1")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func userOf(r *http.Request) string {
	user, _ := r.Context().Value(userKey{}).(string)
	return user
}

// principal tells the idempotency layer whose key it is: the user's id, never
// the token, which changes while the user stays the same.
func principal(r *http.Request) (string, error) { return userOf(r), nil }

func newID(kind string) string { return kind + "-" + strings.ToLower(rand.Text()[:10]) }

// read decodes the whole body into v.
func read(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone will ask again
}

func refuse(w http.ResponseWriter, status int, text string) {
	write(w, status, map[string]string{"error": text})
}
