// Package idempotent runs an operation at most once per key.
package idempotent
