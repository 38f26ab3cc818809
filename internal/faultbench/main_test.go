//go:build unix

package faultbench

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // outages are planned here
	if os.Getenv(tillStore) != "" {
		os.Exit(till())
	}
	os.Exit(m.Run())
}
