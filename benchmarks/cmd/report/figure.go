package main

import "math"

// figure is a chart together with the numbers in it.
type figure struct {
	file  string // of the chart, without its ending
	title string
	x, y  string // names of the axes, with units
	logX  bool
	logY  bool
	bars  []string // names of the groups of a bar chart; points are those of the groups, in order
	lines []line
	words string // what a reader should see in it
}

// line is one line or one colour of bars.
type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

func (l *line) add(x, y float64) { l.points = append(l.points, point{x, y}) }

// grown is by how many times a line grows from its first to its last point.
func (l line) grown() float64 {
	if len(l.points) == 0 {
		return math.NaN()
	}
	return l.points[len(l.points)-1].y / l.points[0].y
}

// newLines returns lines without points.
func newLines(names ...string) []line {
	lines := make([]line, len(names))
	for i, name := range names {
		lines[i].name = name
	}
	return lines
}

// section is a part of the report that fills charts.
type section struct {
	id      string
	redis   bool
	measure func(*bench) ([]figure, error)
}

func sections() []section {
	return []section{
		{"paths", false, costByPath},
		{"parallelism", false, throughput},
		{"bodies", false, costByBody},
		{"entries", false, growthInMemory},
		{"sweeps", false, sweeps},
		{"records", true, growthInRedis},
		{"waiters", false, growthOfWaiters},
		{"leases", false, growthOfLeases},
	}
}
