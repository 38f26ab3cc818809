module github.com/idempotent-go/idempotent

go 1.26
