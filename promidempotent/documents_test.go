package promidempotent_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/idempotent-go/idempotent/promidempotent"
)

var (
	metricName = regexp.MustCompile(`\bidempotent_[a-z_]+`)
	matcher    = regexp.MustCompile(`\b([a-z]+)(?:=~|!~|!=|=)"([^"]*)"`)
)

// exposed is what a scrape can find: names of series, and the values of labels.
func exposed(t *testing.T) (names map[string]bool, labels map[string]map[string]bool) {
	t.Helper()
	names, labels = map[string]bool{}, map[string]map[string]bool{}
	held := promidempotent.NewStoreCollector(func() promidempotent.StoreStats { return promidempotent.StoreStats{} })
	for series := range series(t, promidempotent.New(), held) {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(series, " count"), " sum"), "{")
		if strings.HasSuffix(name, "_seconds") {
			names[name+"_bucket"], names[name+"_count"], names[name+"_sum"] = true, true, true
		} else {
			names[name] = true
		}
		for _, m := range regexp.MustCompile(`[{,]([a-z]+)=([^,}]+)`).FindAllStringSubmatch(series, -1) {
			if labels[m[1]] == nil {
				labels[m[1]] = map[string]bool{}
			}
			labels[m[1]][m[2]] = true
		}
	}
	return names, labels
}

// requireExposed fails where an expression asks for a series that is never
// there: such a panel stays empty, and such an alert never fires.
func requireExposed(t *testing.T, title, expr string) {
	t.Helper()
	names, labels := exposed(t)
	used := metricName.FindAllString(expr, -1)
	require.NotEmpty(t, used, "%s: %s", title, expr)
	for _, name := range used {
		require.Contains(t, names, name, title)
	}
	for _, m := range matcher.FindAllStringSubmatch(expr, -1) {
		if m[1] == "job" {
			continue // of the scrape
		}
		for value := range strings.SplitSeq(m[2], "|") {
			require.Contains(t, labels[m[1]], value, "%s: label %s", title, m[1])
		}
	}
	for _, by := range regexp.MustCompile(`\bby \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(by[1], ", ") {
			if label != "job" && label != "instance" && label != "le" {
				require.Contains(t, labels, label, title)
			}
		}
	}
}

// families returns what the series of a set of expressions belong to.
func families(exprs []string) map[string]bool {
	found := map[string]bool{}
	for _, expr := range exprs {
		for _, name := range metricName.FindAllString(expr, -1) {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				name = strings.TrimSuffix(name, suffix)
			}
			found[name] = true
		}
	}
	return found
}

func TestDashboardShowsWhatIsCounted(t *testing.T) {
	text, err := os.ReadFile("../docs/grafana.json")
	require.NoError(t, err)
	var dashboard struct {
		Title  string
		Panels []struct {
			ID                 int
			Title, Description string
			GridPos            struct{ X, Y, W, H int }
			Targets            []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Title)
	require.GreaterOrEqual(t, len(dashboard.Panels), 8)
	ids, places := map[int]bool{}, map[[2]int]string{}
	var exprs []string
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Title)
		require.NotEmpty(t, p.Description, p.Title)
		require.False(t, ids[p.ID], "%s: id %d is there twice", p.Title, p.ID)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			require.Less(t, x, 24, p.Title)
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, places[[2]int{x, y}], "%s lies on another panel", p.Title)
				places[[2]int{x, y}] = p.Title
			}
		}
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			requireExposed(t, p.Title, target.Expr)
			exprs = append(exprs, target.Expr)
		}
	}
	shown := families(exprs)
	names, _ := exposed(t)
	for name := range names {
		for family := range families([]string{name}) {
			require.Contains(t, shown, family, "no panel shows it")
		}
	}
}

func TestAlertsSayWhatToDo(t *testing.T) {
	text, err := os.ReadFile("../docs/alerts.yml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&rules))
	require.Len(t, rules.Groups, 1)
	var exprs []string
	seen := map[string]bool{}
	for _, r := range rules.Groups[0].Rules {
		require.False(t, seen[r.Alert], r.Alert)
		seen[r.Alert] = true
		requireExposed(t, r.Alert, r.Expr)
		exprs = append(exprs, r.Expr)
		require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
		for _, part := range []string{"summary", "description", "action"} {
			require.NotEmpty(t, r.Annotations[part], "%s: %s", r.Alert, part)
		}
	}
	alerted := families(exprs)
	for _, name := range []string{
		"idempotent_not_recorded_total", "idempotent_abandoned_total", "idempotent_lost_total", "idempotent_take_overs_total",
		"idempotent_store_errors_total", "idempotent_early_evictions_total", "idempotent_long_running_total",
	} {
		require.Contains(t, alerted, name)
	}
}
