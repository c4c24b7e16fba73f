package main

import (
	"context"
	"fmt"
	"time"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
)

// curve is documents a second by the size of the batch.
type curve struct {
	name   string
	points []point
}

type point struct {
	documents int
	perSecond float64
}

// sizes are the sizes of the batches in the picture; the largest that is inserted one by one is singlesUpTo.
var sizes = []int{1, 10, 100, 1_000, 10_000, 100_000}

const singlesUpTo = 1_000

// measureThroughput inserts numbered batches of growing size in three ways.
func measureThroughput(ctx context.Context, on *server) ([]curve, error) {
	ours, theirs := on.db.Collection("ours"), on.db.Collection("theirs")
	number := idgen.NewCounter(on.db.Collection("counters"), "no")
	clean := func(ctx context.Context) error { return drop(ctx, ours, theirs) }
	curves := []curve{{name: "Insert, numbered"}, {name: "InsertMany, not numbered"}, {name: "one by one, numbered"}}
	for _, n := range sizes {
		rounds := max(1, min(20, 10_000/n)) * 2
		documents := withoutIDs(n)
		c, err := compare(ctx, rounds, insertOurs(batch.Config{}, batch.Into(ours, documents).Number("no", number)), insertMany(theirs, documents, chunk), clean)
		if err != nil {
			return nil, err
		}
		curves[0].points = append(curves[0].points, pointOf(n, c.ours))
		curves[1].points = append(curves[1].points, pointOf(n, c.theirs))
		if n <= singlesUpTo {
			by, err := compare(ctx, rounds, insertSingly(theirs, documents, number), insertSingly(theirs, documents, number), clean)
			if err != nil {
				return nil, err
			}
			curves[2].points = append(curves[2].points, pointOf(n, append(by.ours, by.theirs...)))
		}
		fmt.Printf("batches of %d documents:", n)
		for _, one := range curves {
			if last := one.points[len(one.points)-1]; last.documents == n {
				fmt.Printf(" %s %.0f/s;", one.name, last.perSecond)
			}
		}
		fmt.Println()
	}
	return curves, nil
}

// pointOf takes the mean of the samples.
func pointOf(n int, samples []sample) point {
	var sum time.Duration
	for _, s := range samples {
		sum += s.time
	}
	return point{n, float64(n*len(samples)) / sum.Seconds()}
}
