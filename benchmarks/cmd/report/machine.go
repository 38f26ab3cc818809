package main

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// machine is where the report was made and with what. It has no name.
type machine struct {
	cpu      string
	cores    int
	maxprocs int
	system   string // operating system and architecture
	goVer    string
	redis    string // version of the server; "" where there is none
	modules  []string
}

// measuredModules are those whose version matters to a figure.
var measuredModules = []string{
	"github.com/gofiber/fiber/v2", "github.com/valyala/fasthttp", "golang.org/x/sync", "github.com/maypok86/otter/v2",
	"github.com/dgraph-io/ristretto/v2", "github.com/jellydator/ttlcache/v3", "github.com/hashicorp/golang-lru/v2",
	"github.com/patrickmn/go-cache", "github.com/redis/go-redis/v9", "github.com/redis/rueidis",
}

func thisMachine(server string) machine {
	m := machine{
		cpu: cpuModel(), cores: runtime.NumCPU(), maxprocs: runtime.GOMAXPROCS(0),
		system: runtime.GOOS + "/" + runtime.GOARCH, goVer: runtime.Version(), redis: server,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if slices.Contains(measuredModules, d.Path) {
				m.modules = append(m.modules, d.Path+" "+d.Version)
			}
		}
	}
	return m
}

// cpuModel asks Linux and macOS; elsewhere the architecture must do.
func cpuModel() string {
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer func() { _ = f.Close() }()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	if out, err := exec.Command("sysctl", "-n", "machdep.cpu.brand_string").Output(); err == nil {
		return strings.TrimSpace(string(out))
	}
	return "unknown processor"
}

// serverVersion reads the version out of the server's own account.
func serverVersion(info string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}
