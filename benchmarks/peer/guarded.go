package peer

import (
	"net/http"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/memstore"
)

// Guarded is the app behind this library's middleware, with a memory store
// and bodies compared byte for byte.
func Guarded(op func() string) *App {
	s := memstore.New(memstore.WithLogger(quiet))
	return GuardedBy(s, op, func() { _ = s.Close() })
}

// GuardedBy is Guarded over another store, which end closes, and with further
// options.
func GuardedBy(s idempotent.Store, op func() string, end func(), opts ...idempotent.HTTPOption) *App {
	protect := idempotent.New(s, idempotent.WithLogger(quiet)).Middleware(Principal, append([]idempotent.HTTPOption{idempotent.WithFingerprint(idempotent.RawBody)}, opts...)...)
	return netHTTP(protect(orders(op)), end)
}

// Principal is the one user of the apps. With it and a UUID as the key, store
// names have 90 bytes.
func Principal(*http.Request) (string, error) { return "tenant-0042/user-000001234567", nil }
