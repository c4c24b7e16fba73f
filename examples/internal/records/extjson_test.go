package records

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The same value in each of its forms is the same BSON.
func TestFormsOfExtendedJSON(t *testing.T) {
	for _, c := range []struct {
		canonical string
		others    []string
	}{
		{`{"$oid":"507f1f77bcf86cd799439011"}`, nil},
		{`{"$date":{"$numberLong":"1600000000000"}}`, []string{`{"$date":"2020-09-13T12:26:40Z"}`, `{"$date":"2020-09-13T14:26:40.000+0200"}`, `{"$date":1600000000000}`}},
		{`{"$date":{"$numberLong":"-1"}}`, []string{`{"$date":"1969-12-31T23:59:59.999Z"}`, `{"$date":-1}`}},
		{`{"$numberInt":"42"}`, []string{`42`}},
		{`{"$numberLong":"1600000000000"}`, []string{`1600000000000`}},
		{`{"$numberLong":"9007199254740993"}`, []string{`9007199254740993`}},
		{`{"$numberLong":"-9223372036854775808"}`, []string{`-9223372036854775808`}},
		{`{"$numberDouble":"4.5"}`, []string{`4.5`, `45e-1`}},
		{`{"$numberDouble":"NaN"}`, nil},
		{`{"$numberDecimal":"12345678901234567890.123"}`, nil},
		{`{"$binary":{"base64":"AQID","subType":"80"}}`, []string{`{"$binary":"AQID","$type":"80"}`, `{"$type":"80","$binary":"AQID"}`}},
		{`{"$binary":{"base64":"yO2rw/c4TKO2jauSqRR4ow==","subType":"04"}}`, []string{`{"$uuid":"c8edabc3-f738-4ca3-b68d-ab92a91478a3"}`}},
		{`{"$regularExpression":{"pattern":"^a","options":"im"}}`, []string{`{"$regex":"^a","$options":"mi"}`, `{"$options":"im","$regex":"^a"}`}},
		{`{"$regularExpression":{"pattern":"b$","options":""}}`, []string{`{"$regex":"b$"}`, `{"$regex":"b$","$options":""}`}},
		{`{"$timestamp":{"t":1600000000,"i":7}}`, []string{`{"$timestamp":{"i":7,"t":1600000000}}`}},
		{`{"$code":"f()"}`, nil},
		{`{"$code":"f()","$scope":{"x":{"$numberInt":"1"}}}`, []string{`{"$code":"f()","$scope":{"x":1}}`}},
		{`{"$symbol":"s"}`, nil},
		{`{"$minKey":1}`, nil},
		{`{"$maxKey":1}`, nil},
		{`{"$undefined":true}`, nil},
		{`{"$ref":"places","$id":{"$oid":"507f1f77bcf86cd799439011"}}`, nil},
		{`{"$ref":"places","$id":"x","$db":"d"}`, nil},
		{`"\u0000\u20ac"`, []string{"\"\\u0000€\""}},
		{`null`, nil},
		{`[{"$numberInt":"1"},[{"$oid":"507f1f77bcf86cd799439011"}]]`, []string{`[1,[{"\u0024oid":"507f1f77bcf86cd799439011"}]]`}},
		{`{"$gt":{"$numberInt":"1"}}`, []string{`{"$gt":1}`}}, // no Extended JSON: a document like others
		{`{"$regex":{"$numberInt":"1"}}`, []string{`{"$regex":1}`}},
	} {
		for i, form := range append([]string{c.canonical}, c.others...) {
			for _, around := range []string{`{"before":1,"v":%s,"after":"x"}`, `{"v":{"deep":[{"v":%s}]}}`} {
				text := fmt.Sprintf(around, form)
				raw, flaw := document([]byte(text))
				if flaw != nil {
					t.Errorf("%s: %s", text, flaw.text)
					continue
				}
				want, _ := document([]byte(fmt.Sprintf(around, c.canonical)))
				if string(raw) != string(want) {
					t.Errorf("%s is %v, its canonical form %v", text, raw, want)
				}
				got, err := bson.MarshalExtJSON(raw, true, false)
				if i == 0 && (err != nil || !strings.Contains(string(got), strings.ReplaceAll(c.canonical, `\u20ac`, "€"))) {
					t.Errorf("%s became %s, %v", text, got, err)
				}
			}
		}
	}
}

// What is not right is refused where it stands, never stored as something else.
func TestBadExtendedJSON(t *testing.T) {
	for _, c := range []struct{ text, at, problem string }{
		{`{"a":{"$oid":"xyz"}}`, "6", "not a valid $oid (the provided hex string"},
		{`{"x":{"y":[1,{"$oid":"xyz"}]}}`, "14", "not a valid $oid"},
		{`{"a":{"$oid":"507f1f77bcf86cd799439011","x":1}}`, "6", "not a valid $oid"},
		{`{"a":{"x":1,"$oid":"507f1f77bcf86cd799439011"}}`, "13", "$oid does not stand where it makes a value"},
		{`{"$oid":"507f1f77bcf86cd799439011"}`, "2", "$oid does not stand where it makes a value"},
		{`{"a":{"$numberLong":1600000000000}}`, "6", "not a valid $numberLong (expected value for 64-bit integer); it is written as {\"$numberLong\":\"42\"}"},
		{`{"a":{"$numberLong":"9223372036854775808"}}`, "6", "not a valid $numberLong"},
		{`{"a":{"$numberInt":"2147483648"}}`, "6", "not a valid $numberInt"},
		{`{"a":{"$numberInt":"5.5"}}`, "6", "not a valid $numberInt"},
		{`{"a":{"$numberDecimal":"many"}}`, "6", "not a valid $numberDecimal"},
		{`{"a":{"$date":"2020-02-30T00:00:00Z"}}`, "6", "not a valid $date"},
		{`{"a":{"$date":"2020-02-03"}}`, "6", "not a valid $date"},
		{`{"a":{"$date":{"$numberLong":5}}}`, "15", "not a valid $numberLong"},
		{`{"a":{"$binary":"AQID"}}`, "6", "not a valid $binary"},
		{`{"a":{"$binary":{"base64":"?","subType":"00"}}}`, "6", "not a valid $binary"},
		{`{"a":{"$type":"00","$binary":"?"}}`, "20", "$binary does not stand where it makes a value"},
		{`{"a":{"$uuid":"c8edabc3"}}`, "6", "not a valid $uuid"},
		{`{"a":{"$timestamp":{"t":-1,"i":1}}}`, "6", "not a valid $timestamp"},
		{`{"a":{"$scope":{},"$code":"x"}}`, "6", "not a valid $scope"},
		{`{"a":{"$undefined":false}}`, "6", "not a valid $undefined"},
		{`{"a":NumberLong(1)}`, "6", "invalid character 'N' at start of value; values such as ObjectId(…) are for the shell"},
		{`{"a":ISODate("2020-01-01")}`, "6", "invalid character 'I' at start of value; values such as"},
		{`{'a':1}`, "2", `invalid character '\'' at start of value; text stands in double quotes`},
		{`{a:1}`, "2", "invalid character 'a'"},
		{`{"a":1,}`, "7", "invalid character"},
		{`{"a":01}`, "7", "invalid character"},
		{`{"a":NaN}`, "6", "invalid character 'N'"},
		{"{\"a\":\"x\ty\"}", "8", `invalid character '\t' in string`},
		{`{"a":1,"b":2,"a":3}`, "14", `the field "a" stands twice in the same object`},
		{`{"x":[{"a":1,"\u0061":3}]}`, "14", `the field "a" stands twice in the same object`},
		{`{"a":{"$oid":"507f1f77bcf86cd799439011","$oid":"507f1f77bcf86cd799439011"}}`, "41", `the field "$oid" stands twice`},
		{`{"_id":1,"_id":2}`, "10", `the field "_id" stands twice`},
		{"{\"a\":\"\xff\"}", "7", "invalid UTF-8"},
		{"{\"M\xfcller\":1}", "4", "invalid UTF-8"},
		{`{"a":"\ud800"}`, "7", "invalid surrogate pair"},
		{`{"a\u0000b":1}`, "12", "the name of a field must not contain"},
		{`{"a":9223372036854775808}`, "6", "the whole number 9223372036854775808 does not fit into 64 bits"},
		{`{"a":[1, 12345678901234567890123]}`, "10", "the whole number 12345678901234567890123 does not fit"},
		{`{"a":1e400}`, "6", "strconv.ParseFloat: parsing \"1e400\": value out of range"},
		{`{"a":` + strings.Repeat("[", 180) + strings.Repeat("]", 180) + `}`, "185", "the document is nested deeper than 180 levels"},
		{`{"a":` + strings.Repeat(`{"a":`, 180) + "1" + strings.Repeat("}", 180) + `}`, "901", "the document is nested deeper than 180 levels"},
	} {
		_, flaw := document([]byte(c.text))
		if flaw == nil {
			t.Errorf("%.80s was accepted", c.text)
			continue
		}
		if at := fmt.Sprint(column([]byte(c.text), flaw.offset)); at != c.at || !strings.HasPrefix(flaw.text, c.problem) {
			t.Errorf("%.80s\n got %s: %s\nwant %s: %s", c.text, at, flaw.text, c.at, c.problem)
		}
		if len(flaw.text) > 300 {
			t.Errorf("%.80s: the message has %d bytes", c.text, len(flaw.text))
		}
	}
}

// Fields keep their order, whatever is converted.
func TestOrder(t *testing.T) {
	raw, flaw := document([]byte(`{"z":1,"a":{"y":{"$regex":"x"},"b":2},"m":3}`))
	if flaw != nil {
		t.Fatal(flaw.text)
	}
	const want = `{"z":1,"a":{"y":{"$regularExpression":{"pattern":"x","options":""}},"b":2},"m":3}`
	if got, err := bson.MarshalExtJSON(raw, false, false); err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

func FuzzDocument(f *testing.F) {
	for _, seed := range []string{`{"a":{"$oid":"507f1f77bcf86cd799439011"}}`, `{"a":[1,{"$regex":"x"}]}`, `{"a":{"$type":"00","$binary":"AQID"}}`, `{"":{"$date":5}}`, `{"a":{"$code":"x","$scope":{"y":{}}}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		raw, flaw := document(text)
		if flaw != nil {
			if flaw.offset > len(text) {
				t.Errorf("offset %d of %d", flaw.offset, len(text))
			}
			return
		}
		if err := raw.Validate(); err != nil {
			t.Fatalf("invalid BSON: %v", err)
		}
		// What was read can be written, and reads the same again.
		written, err := bson.MarshalExtJSON(raw, true, false)
		if err != nil {
			t.Skip(err) // the driver's writer knows limits of its own
		}
		again, flaw := document(written)
		if flaw != nil {
			t.Skip(flaw.text)
		}
		if string(again) != string(raw) {
			t.Errorf("%v became %v by way of %s", raw, again, written)
		}
	})
}
