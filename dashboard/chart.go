package dashboard

import (
	"fmt"
	"html/template"
	"strings"
)

// chart is a line over time with its latest value.
type chart struct {
	Name, Value, Note string
	Line              template.HTML // an SVG made of numbers only
}

const (
	chartWidth  = 240
	chartHeight = 56
)

// line draws values from left to right; the highest touches the top.
func line(values []float64, label string) template.HTML {
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	var points strings.Builder
	n := max(len(values)-1, 1)
	for i, v := range values {
		y := float64(chartHeight - 2)
		if top > 0 {
			y -= v / top * (chartHeight - 6)
		}
		_, _ = fmt.Fprintf(&points, "%.1f,%.1f ", float64(i)*chartWidth/float64(n), y)
	}
	area := ""
	if len(values) > 1 {
		area = fmt.Sprintf(`<polygon class="area" points="0,%d %s%d,%d"/><polyline class="line" points="%s"/>`, chartHeight, points.String(), chartWidth, chartHeight, points.String())
	}
	return template.HTML(fmt.Sprintf(`<svg class="chart" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">%s</svg>`, //nolint:gosec // numbers, and an escaped text
		chartWidth, chartHeight, template.HTMLEscapeString(label), area))
}

func last(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}
