package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/idempotent-go/idempotent"
)

// errDeclined says that no money has moved. With any other error it may have.
var errDeclined = errors.New("payment declined")

// chargeFunc asks a payment provider for money. It is the operation that must
// not happen twice.
type chargeFunc func(context.Context, payment) error

// provider returns the payment provider at url, or a stand-in without one.
func provider(url string) chargeFunc {
	if url == "" {
		return standIn
	}
	return func(ctx context.Context, p payment) error { return chargeOver(ctx, url, p) }
}

// standIn agrees after three seconds: time to send a duplicate, to hang up, or
// to stop the shop.
func standIn(ctx context.Context, _ payment) error {
	select {
	case <-time.After(3 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// chargeOver posts the payment to url: 2xx is agreed, 402 declined.
func chargeOver(ctx context.Context, url string, p payment) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	// Pass the key on. The shop's record and the provider's books are two
	// systems: should the shop die between them, somebody has to ask the
	// provider what became of this key.
	if x, ok := idempotent.FromContext(ctx); ok {
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%x", sha256.Sum256([]byte(x.Key))))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusPaymentRequired:
		return errDeclined
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("payment provider: %s", resp.Status)
	}
	return nil
}
