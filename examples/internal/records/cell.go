package records

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Type is what the cells of a column are converted to. The zero Type is text.
type Type struct {
	name    string
	parse   func(cell, argument string) (any, error)
	example string
	// argument is what stands in the parentheses.
	argument string
}

// types are named as mongoimport's --columnsHaveTypes names them.
var types = []Type{
	{name: "string", parse: func(cell, _ string) (any, error) { return cell, nil }},
	{name: "int32", parse: parseInt32, example: "42"},
	{name: "int64", parse: parseInt64, example: "42"},
	{name: "double", parse: parseDouble, example: "4.2"},
	{name: "decimal", parse: parseDecimal, example: "4.20"},
	{name: "boolean", parse: parseBoolean, example: "true or false"},
	{name: "date", parse: parseDate, example: "2024-01-31T12:00:00Z, or as the layout of Go's package time in the parentheses says"},
	{name: "date_go", parse: parseDate, example: "what the layout of Go's package time in the parentheses says"},
	{name: "binary", parse: parseBinary, example: "base64, base32 or hex, as named in the parentheses"},
	{name: "objectid", parse: parseObjectID, example: "507f1f77bcf86cd799439011"},
	{name: "auto", parse: parseAuto},
}

// splitType reads "founded.int32()" into the field's name and its type.
func splitType(heading string) (string, Type, error) {
	front, argument, ok := strings.Cut(strings.TrimSuffix(heading, ")"), "(")
	dot := strings.LastIndexByte(front, '.')
	if ok && dot > 0 && strings.HasSuffix(heading, ")") {
		for _, t := range types {
			if t.name == front[dot+1:] {
				t.argument = argument
				return front[:dot], t, nil
			}
		}
	}
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.name
	}
	return "", Type{}, fmt.Errorf("the column %q names no type; it is written as in population.int64(), with one of %s", short(heading), strings.Join(names, ", "))
}

func (t Type) convert(cell string) (any, error) {
	if t.parse == nil {
		return cell, nil
	}
	value, err := t.parse(cell, t.argument)
	if err == nil {
		return value, nil
	}
	if cell == "" {
		return nil, fmt.Errorf("an empty cell is not of type %s; empty cells can be left out", t.name)
	}
	return nil, fmt.Errorf("%q is not of type %s, written %s", short(cell), t.name, t.example)
}

func parseInt32(cell, _ string) (any, error) {
	n, err := strconv.ParseInt(cell, 10, 32)
	return int32(n), err
}

func parseInt64(cell, _ string) (any, error) {
	n, err := strconv.ParseInt(cell, 10, 64)
	return n, err
}

func parseDouble(cell, _ string) (any, error) {
	if strings.ContainsAny(cell, "_xXpP") { // only Go's own notation has these
		return nil, strconv.ErrSyntax
	}
	return strconv.ParseFloat(cell, 64)
}

func parseDecimal(cell, _ string) (any, error) { return bson.ParseDecimal128(cell) }

func parseBoolean(cell, _ string) (any, error) {
	switch strings.ToLower(cell) {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return nil, strconv.ErrSyntax
}

func parseDate(cell, layout string) (any, error) {
	if layout == "" {
		layout = time.RFC3339Nano
	}
	t, err := time.Parse(layout, cell)
	return bson.NewDateTimeFromTime(t), err
}

func parseBinary(cell, encoding string) (any, error) {
	var data []byte
	var err error
	switch encoding {
	case "base64":
		data, err = base64.StdEncoding.DecodeString(cell)
	case "base32":
		data, err = base32.StdEncoding.DecodeString(cell)
	case "hex":
		data, err = hex.DecodeString(cell)
	default:
		err = strconv.ErrSyntax
	}
	return bson.Binary{Data: data}, err
}

func parseObjectID(cell, _ string) (any, error) { return bson.ObjectIDFromHex(cell) }

// parseAuto takes a cell as a number only if writing the number gives the cell again: codes such as 00417 or 1e5, and
// numbers with more digits than a double has, stay text.
func parseAuto(cell, _ string) (any, error) {
	if n, err := strconv.ParseInt(cell, 10, 64); err == nil && strconv.FormatInt(n, 10) == cell {
		if int64(int32(n)) == n {
			return int32(n), nil
		}
		return n, nil
	}
	if f, err := strconv.ParseFloat(cell, 64); err == nil && strconv.FormatFloat(f, 'f', -1, 64) == cell {
		return f, nil
	}
	switch cell {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return cell, nil
}
