// Package client sends operations that must not run twice to servers that
// understand Idempotency-Key, such as those behind the middleware of package
// idempotent.
//
// [New] makes an http.RoundTripper that gives every POST and PATCH one key and
// sends it again, under the same key, where the answer was lost or the server
// says that an earlier attempt is still running:
//
//	c := &http.Client{Transport: client.New(nil)}
//	order, err := client.Do[Order](ctx, c, http.MethodPost, url, cart)
//
// Any answer of the operation is final: a business error, a replay and a reused
// key are returned as they are. Where no answer is to be had, the error is an
// [*UnknownError]: the operation may have happened. It carries the key, and
// whoever sends the request again sends that key again, by [WithKey]. A new key
// would be a new operation.
//
// A key that must outlive the process is made by [NewKey] and stored before the
// first attempt:
//
//	key := client.NewKey()
//	// … store it with the order …
//	order, err := client.Do[Order](client.WithKey(ctx, key), c, http.MethodPost, url, cart)
//
// Inside an operation of a Guard, a call that is given no key gets one derived
// from that operation, the same on each of its attempts; see [Transport].
package client
