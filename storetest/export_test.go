package storetest

import "github.com/idempotent-go/idempotent"

// NewReference returns the reference store, for examples.
func NewReference() idempotent.Store { return newReference() }
