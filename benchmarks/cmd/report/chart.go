package main

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// palette are colours that the colour-blind can tell apart.
var palette = []color.Color{
	color.RGBA{R: 0, G: 114, B: 178, A: 255},
	color.RGBA{R: 213, G: 94, B: 0, A: 255},
	color.RGBA{R: 0, G: 158, B: 115, A: 255},
	color.RGBA{R: 204, G: 121, B: 167, A: 255},
	color.RGBA{R: 86, G: 180, B: 233, A: 255},
	color.RGBA{R: 230, G: 159, B: 0, A: 255},
	color.RGBA{R: 60, G: 60, B: 60, A: 255},
}

// draw writes the chart as SVG into dir.
func (f figure) draw(dir string) error {
	p := plot.New()
	p.Title.Text = f.title
	p.X.Label.Text, p.Y.Label.Text = f.x, f.y
	p.BackgroundColor = color.White
	p.Title.Padding = vg.Points(8)
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(2)
	p.Add(plotter.NewGrid())
	var err error
	if f.bars != nil {
		err = f.drawBars(p)
	} else {
		err = f.drawLines(p)
	}
	if err != nil {
		return fmt.Errorf("chart %s: %w", f.file, err)
	}
	return p.Save(18*vg.Centimeter, 11*vg.Centimeter, filepath.Join(dir, f.file+".svg"))
}

func (f figure) drawLines(p *plot.Plot) error {
	if f.logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	}
	if f.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	} else {
		p.Y.Min = 0
	}
	for i, l := range f.lines {
		var xys plotter.XYs
		for _, pt := range l.points {
			if f.logY && pt.y <= 0 {
				continue // nothing that a logarithm could show
			}
			xys = append(xys, plotter.XY{X: pt.x, Y: pt.y})
		}
		if len(xys) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, points.Color = palette[i%len(palette)], palette[i%len(palette)]
		line.Width = vg.Points(1.5)
		points.Shape, points.Radius = draw.CircleGlyph{}, vg.Points(2.5)
		p.Add(line, points)
		p.Legend.Add(l.name, line, points)
	}
	if f.logX {
		p.X.Min, p.X.Max = around(p.X.Min, p.X.Max)
	}
	if f.logY {
		p.Y.Min, p.Y.Max = around(p.Y.Min, p.Y.Max)
		p.Y.Max = p.Y.Min * math.Pow(p.Y.Max/p.Y.Min, f.headroom())
	} else {
		p.Y.Max *= f.headroom()
	}
	return nil
}

// headroom is by how much the axis must be longer so that the legend, above the
// lines, hides none of them.
func (f figure) headroom() float64 { return 1 / (1 - 0.055*float64(len(f.lines))) }

// around widens a range so that a logarithm can show it.
func around(least, most float64) (float64, float64) {
	if least <= 0 || math.IsInf(least, 0) || math.IsInf(most, 0) {
		return 0.1, 10
	}
	return least / 1.2, most * 1.2
}

func (f figure) drawBars(p *plot.Plot) error {
	const width = 22
	for i, l := range f.lines {
		var values plotter.Values
		for _, pt := range l.points {
			values = append(values, pt.y)
		}
		bars, err := plotter.NewBarChart(values, vg.Points(width))
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = palette[i%len(palette)], 0
		bars.Offset = vg.Points(width * (float64(i) - float64(len(f.lines)-1)/2))
		p.Add(bars)
		p.Legend.Add(l.name, bars)
	}
	p.NominalX(f.bars...)
	p.X.Min, p.X.Max = -0.5, float64(len(f.bars))-0.5
	p.Y.Min = 0
	p.Y.Max *= f.headroom()
	return nil
}

// decades marks powers of ten with a label and what lies between without one.
type decades struct{}

func (decades) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	labels := 0
	for e := math.Floor(math.Log10(least)); e <= math.Ceil(math.Log10(most)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < least || v > most {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 {
				t.Label = short10(v)
				labels++
			}
			ticks = append(ticks, t)
		}
	}
	if labels < 2 { // a range within one decade
		for i := range ticks {
			ticks[i].Label = short10(ticks[i].Value)
		}
	}
	return ticks
}

// short10 writes 10000 as "10 k".
func short10(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
