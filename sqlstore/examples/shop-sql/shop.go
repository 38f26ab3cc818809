package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/sqlstore"
)

// What an order's state column says.
const (
	statePlaced    = "placed"
	stateCancelled = "cancelled" // the row stays
)

type order struct {
	ID       string `json:"id"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Coupon   string `json:"coupon,omitempty"` // good for one order
}

// shop keeps orders in a table whose unique index holds for principal and
// idempotency key.
type shop struct {
	db      *sql.DB
	dialect *dialect
}

func (s *shop) handler(once func(http.Handler) http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once(http.HandlerFunc(s.createOrder)))
	mux.HandleFunc("DELETE /orders/{id}", s.cancelOrder)
	return mux
}

// principal stands for authentication, which is not the subject here: a real
// shop works the customer out from a session or a signed token.
func principal(r *http.Request) (string, error) { return r.Header.Get("X-Customer"), nil }

// createOrder runs once a key, as far as Redis remembers. Where it does not, the
// index refuses the second row, and the answer is built from the first.
func (s *shop) createOrder(w http.ResponseWriter, r *http.Request) {
	var in order
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Item == "" || in.Quantity < 1 {
		refuse(w, http.StatusUnprocessableEntity, `an order is like {"item":"tea","quantity":2}`)
		return
	}
	in.ID = "ord-" + strings.ToLower(rand.Text()[:10])
	customer, _ := principal(r)
	// The name under which the guard runs this: method, path, customer and the
	// client's key without its quotes.
	execution, _ := idempotent.FromContext(r.Context())

	placed, err := s.place(r.Context(), customer, execution.Key, in)
	switch {
	case err == nil:
		w.Header().Set("Location", "/orders/"+placed.ID)
		write(w, http.StatusCreated, placed)
	case errors.Is(err, idempotent.ErrKeyReused):
		refuse(w, http.StatusUnprocessableEntity, "this key was used for another order")
	case errors.Is(err, sqlstore.ErrDeleted):
		refuse(w, http.StatusGone, "the order of this key was cancelled")
	case errors.Is(err, sqlstore.ErrRunning), errors.Is(err, sqlstore.ErrNotVisible):
		// Nothing has happened here, and the answer is not known yet.
		idempotent.Release(r.Context())
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusConflict, "the order of this key is being placed")
	case sqlstore.IsDuplicate(err, s.dialect.coupon):
		refuse(w, http.StatusConflict, "this coupon has been used")
	default:
		// 5xx: it may have happened, and is not run again by itself.
		refuse(w, http.StatusInternalServerError, "the order could not be placed")
	}
}

// place inserts the order in a transaction, with whatever else belongs to it, or
// returns the one that this key has placed before.
func (s *shop) place(ctx context.Context, customer, key string, in order) (order, error) {
	err := s.insert(ctx, customer, key, in)
	if !sqlstore.IsDuplicate(err, s.dialect.once) {
		return in, err
	}
	return sqlstore.Existing(ctx, func(ctx context.Context) (order, sqlstore.State, error) {
		first, state, err := s.load(ctx, customer, key)
		if err == nil && (first.Item != in.Item || first.Quantity != in.Quantity || first.Coupon != in.Coupon) {
			err = idempotent.ErrKeyReused
		}
		return first, state, err
	})
}

func (s *shop) insert(ctx context.Context, customer, key string, o order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	_, err = tx.ExecContext(ctx, s.dialect.text(`
INSERT INTO shop_sql_orders (id, principal, idempotency_key, item, quantity, coupon, state) VALUES (?, ?, ?, ?, ?, ?, ?)`),
		o.ID, customer, key, o.Item, o.Quantity, sql.NullString{String: o.Coupon, Valid: o.Coupon != ""}, statePlaced)
	if err != nil {
		return err
	}
	return tx.Commit()
}

// load reads the order of a key, outside of the transaction that was refused.
func (s *shop) load(ctx context.Context, customer, key string) (o order, state sqlstore.State, err error) {
	var text string
	var coupon sql.NullString
	err = s.db.QueryRowContext(ctx, s.dialect.text(`
SELECT id, item, quantity, coupon, state FROM shop_sql_orders WHERE principal = ? AND idempotency_key = ?`),
		customer, key).Scan(&o.ID, &o.Item, &o.Quantity, &coupon, &text)
	o.Coupon = coupon.String
	switch text {
	case statePlaced:
		state = sqlstore.StateFinished
	case stateCancelled:
		state = sqlstore.StateDeleted
	}
	return o, state, err
}

func (s *shop) cancelOrder(w http.ResponseWriter, r *http.Request) {
	customer, _ := principal(r)
	_, err := s.db.ExecContext(r.Context(), s.dialect.text("UPDATE shop_sql_orders SET state = ? WHERE id = ? AND principal = ?"),
		stateCancelled, r.PathValue("id"), customer)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "the order could not be cancelled")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone will ask again
}

func refuse(w http.ResponseWriter, status int, text string) {
	write(w, status, map[string]string{"error": text})
}
