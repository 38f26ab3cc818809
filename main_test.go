package idempotent_test

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/idempotent-go/idempotent/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	code := m.Run()
	redistest.StopShared()
	os.Exit(code)
}
