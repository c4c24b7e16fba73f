package intact_test

import (
	"testing"

	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }
