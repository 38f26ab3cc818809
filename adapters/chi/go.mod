module github.com/idempotent-go/idempotent/adapters/chi

go 1.26.0

require (
	github.com/go-chi/chi/v5 v5.5.0
	github.com/idempotent-go/idempotent v0.0.0
)

require golang.org/x/sync v0.25.0 // indirect

replace github.com/idempotent-go/idempotent => ../..
