module github.com/idempotent-go/idempotent/otelidempotent

go 1.26.0

require (
	github.com/idempotent-go/idempotent v0.0.0
	github.com/stretchr/testify v1.12.1
	go.opentelemetry.io/otel v1.47.0
	go.opentelemetry.io/otel/metric v1.47.0
	go.opentelemetry.io/otel/sdk v1.47.0
	go.opentelemetry.io/otel/sdk/metric v1.47.0
	go.opentelemetry.io/otel/trace v1.47.0
)

replace github.com/idempotent-go/idempotent => ../
