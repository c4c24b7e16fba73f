package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The picture's measures in pixels.
const (
	width, height         = 720, 400
	left, right           = 70, 190
	top, bottom           = 30, 50
	innerWidth            = width - left - right
	innerHeight           = height - top - bottom
	decades, firstDecade  = 5, 1 // of documents a second, from 10 to 1,000,000
	sizeDecades           = 5    // of batch sizes, from 1 to 100,000
	foreground            = "#24292f"
	grid                  = "#d0d7de"
	fontSize, lineSpacing = 12, 16
)

var colours = []string{"#0969da", "#8250df", "#bc4c00"}

// picture draws the curves, both axes logarithmic, on a light ground that is there in dark viewers too.
func picture(curves []curve) string {
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="%d" fill="%s">`+"\n", width, height, fontSize, foreground)
	s.WriteString("<title>Documents a second by batch size</title>\n")
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	for d := range decades + 1 {
		y := yOf(math.Pow10(firstDecade + d))
		fmt.Fprintf(&s, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`+"\n", left, y, left+innerWidth, y, grid)
		fmt.Fprintf(&s, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y+4, thousands(firstDecade+d))
	}
	for d := range sizeDecades + 1 {
		x := xOf(math.Pow10(d))
		fmt.Fprintf(&s, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/>`+"\n", x, top, x, top+innerHeight, grid)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, top+innerHeight+20, thousands(d))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle">documents in the batch</text>`+"\n", left+innerWidth/2, height-10)
	fmt.Fprintf(&s, `<text x="%d" y="%d">documents a second</text>`+"\n", 10, 18)
	for i, c := range curves {
		path := make([]string, len(c.points))
		for j, p := range c.points {
			path[j] = fmt.Sprintf("%.1f,%.1f", xOf(float64(p.documents)), yOf(p.perSecond))
		}
		fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2.5"/>`+"\n", strings.Join(path, " "), colours[i])
		for _, at := range path {
			x, y, _ := strings.Cut(at, ",")
			fmt.Fprintf(&s, `<circle cx="%s" cy="%s" r="3.5" fill="%s"/>`+"\n", x, y, colours[i])
		}
	}
	labels(&s, curves)
	s.WriteString("</svg>\n")
	return s.String()
}

// labels names the curves at their ends, from the top down: those of curves that end together must not overlap.
func labels(s *strings.Builder, curves []curve) {
	end := func(i int) point { return curves[i].points[len(curves[i].points)-1] }
	order := make([]int, len(curves))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(end(j).perSecond, end(i).perSecond) })
	next := 0.0
	for _, i := range order {
		y := max(yOf(end(i).perSecond)+4, next)
		next = y + lineSpacing
		fmt.Fprintf(s, `<text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n", xOf(float64(end(i).documents))+10, y, colours[i], html.EscapeString(curves[i].name))
	}
}

func xOf(documents float64) float64 { return left + innerWidth*math.Log10(documents)/sizeDecades }

func yOf(perSecond float64) float64 {
	return top + innerHeight*(1-(math.Log10(perSecond)-firstDecade)/decades)
}

// thousands writes a power of ten.
func thousands(exponent int) string {
	digits := "1" + strings.Repeat("0", exponent)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
