module github.com/idempotent-go/idempotent/adapters/echo

go 1.26.0

require (
	github.com/idempotent-go/idempotent v0.0.0
	github.com/labstack/echo/v5 v5.4.6
)

require (
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)

replace github.com/idempotent-go/idempotent => ../..
