package idempotent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sources parses the files of a package that are no tests.
func sources(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	files := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files[filepath.Base(name)] = file
	}
	require.NotEmpty(t, files)
	return files
}

// Run is the one door: the files of the guard speak to a store, and nothing
// above them does.
func TestOnlyTheGuardTouchesAStore(t *testing.T) {
	guard := []string{"guard.go", "lease.go", "execute.go", "unclaim.go", "wait.go", "resolve.go"}
	// The contract itself and its optional abilities.
	contract := []string{"store.go", "capability.go", "janitor.go", "tiered.go", "moving.go"}
	seen := 0
	for name, file := range sources(t, ".") {
		if slices.Contains(contract, name) {
			continue
		}
		selected := map[*ast.Ident]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				selected[n.Sel] = true
				if n.Sel.Name == "store" {
					seen++
					if !slices.Contains(guard, name) {
						t.Errorf("%s reaches for the store; go through Guard.Run", name)
					}
				}
			case *ast.Ident:
				if n.Name == "Store" && !selected[n] && name != "guard.go" {
					t.Errorf("%s names the type Store; go through Guard.Run", name)
				}
			}
			return true
		})
	}
	require.GreaterOrEqual(t, seen, 5, "the test looks for the wrong name")
}

// The guard knows nothing of HTTP.
func TestOnlyTheHandlerKnowsHTTP(t *testing.T) {
	http := []string{"handler.go", "intake.go", "operation.go", "httpoption.go", "key.go", "fingerprint.go", "recorder.go", "response.go", "replay.go", "problem.go", "status.go", "async.go", "result.go"}
	for name, file := range sources(t, ".") {
		for _, imported := range file.Imports {
			path, err := strconv.Unquote(imported.Path.Value)
			require.NoError(t, err)
			if strings.HasPrefix(path, "net/") {
				require.Contains(t, http, name, "imports %s", path)
			}
		}
	}
}

// Imports point one way, and production code is light.
func TestImportsPointOneWay(t *testing.T) {
	const module = "github.com/idempotent-go/idempotent"
	allowed := map[string][]string{
		".":                  {"golang.org/x/sync/errgroup"},
		"memstore":           {module},
		"redisstore":         {module, module + "/internal/waitroom", "github.com/redis/go-redis/v9"},
		"internal/waitroom":  {module},
		"storetest":          {module, module + "/internal/model"},
		"httptestsuite":      {module, module + "/memstore", module + "/storetest"},
		"storeurl":           {module, module + "/memstore", module + "/redisstore", "github.com/redis/go-redis/v9"},
		"inspect":            {module, module + "/internal/discreet"},
		"internal/discreet":  {},
		"internal/telemetry": {module},
		"promidempotent":     {module, module + "/internal/telemetry", "github.com/prometheus/client_golang/prometheus"},
		"otelidempotent": {
			module, module + "/internal/telemetry", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes",
			"go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/propagation", "go.opentelemetry.io/otel/trace",
		},
		"client": {module, "github.com/cenkalti/backoff/v5", "github.com/google/uuid"},
	}
	for dir, extra := range allowed {
		for name, file := range sources(t, dir) {
			for _, imported := range file.Imports {
				path, err := strconv.Unquote(imported.Path.Value)
				require.NoError(t, err)
				standard := !strings.Contains(strings.SplitN(path, "/", 2)[0], ".")
				if !standard {
					require.Contains(t, extra, path, "%s/%s", dir, name)
				}
				if !strings.Contains(dir, "test") {
					require.NotContains(t, path, "test", "%s/%s", dir, name)
				}
			}
		}
	}
}
