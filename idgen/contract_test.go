package idgen_test

import (
	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
)

// Package batch takes every kind, and knows that an Optimistic's numbers are proposals.
var (
	_ batch.Sequence = (*idgen.Counter)(nil)
	_ batch.Sequence = (*idgen.Buffered)(nil)
	_ batch.Sequence = (*idgen.Striped)(nil)
	_ batch.Sequence = (*idgen.Periodic)(nil)
	_ batch.Sequence = (*idgen.Text)(nil)
	_ batch.Proposer = (*idgen.Optimistic)(nil)
)
