package records

import (
	"strings"
	"testing"
)

func TestCSV(t *testing.T) {
	for _, c := range []struct {
		name, text                  string
		table                       Table
		documents, places, problems []string
	}{
		{"nothing", "", Table{}, nil, nil, nil},
		{"only a header", "zip,city\n", Table{}, nil, nil, nil},
		{"text stays as it is", "zip,ref,qty,price,none,flag,exp,day,phone\n00417,\"007\",5,5.0,,true,1e5,2024-01-01,+31201234567\n", Table{},
			[]string{`{"zip":"00417","ref":"007","qty":"5","price":"5.0","none":"","flag":"true","exp":"1e5","day":"2024-01-01","phone":"+31201234567"}`}, []string{"f:2"}, nil},
		{"empty cells left out", "a,b,c\n1,,3\n,,\n", Table{OmitEmpty: true}, []string{`{"a":"1","c":"3"}`, `{}`}, nil, nil},
		{"spaces are kept", "a,b\n 1 ,\" 2\"\n", Table{}, []string{`{"a":" 1 ","b":" 2"}`}, nil, nil},
		{"declared types", "zip.string(),n.int32(),m.int64(),p.double(),d.decimal(),ok.boolean(),day.date(2006-01-02),at.date(),bin.binary(hex),o.objectid()\n00417,5,9007199254740993,5.0,4.20,true,2024-01-31,2024-01-31T12:00:00Z,0aff,507f1f77bcf86cd799439011\n", Table{Typed: true},
			[]string{`{"zip":"00417","n":{"$numberInt":"5"},"m":{"$numberLong":"9007199254740993"},"p":{"$numberDouble":"5.0"},"d":{"$numberDecimal":"4.20"},"ok":true,"day":{"$date":{"$numberLong":"1706659200000"}},"at":{"$date":{"$numberLong":"1706702400000"}},"bin":{"$binary":{"base64":"Cv8=","subType":"00"}},"o":{"$oid":"507f1f77bcf86cd799439011"}}`}, nil, nil},
		{"what is no number stays text", "v.auto()\n00417\n5\n-9007199254740993\n2.5\n1e5\n0x10\n+5\ntrue\nTrue\n12345678901234567890\n", Table{Typed: true},
			[]string{`{"v":"00417"}`, `{"v":{"$numberInt":"5"}}`, `{"v":{"$numberLong":"-9007199254740993"}}`, `{"v":{"$numberDouble":"2.5"}}`, `{"v":"1e5"}`, `{"v":"0x10"}`, `{"v":"+5"}`, `{"v":true}`, `{"v":"True"}`, `{"v":"12345678901234567890"}`}, nil, nil},
		{"a bad cell", "zip.string(),qty.int32()\n00417,5\n00418,5.5\n00419,7\n", Table{Typed: true},
			[]string{`{"zip":"00417","qty":{"$numberInt":"5"}}`, `{"zip":"00419","qty":{"$numberInt":"7"}}`}, []string{"f:2", "f:4"}, []string{`f:3:7: column "qty": "5.5" is not of type int32`}},
		{"an empty cell with a type", "a.string(),qty.int32()\nx,\n", Table{Typed: true}, nil, nil, []string{`f:2:3: column "qty": an empty cell is not of type int32`}},
		{"an empty cell with a type, left out", "a.string(),qty.int32()\nx,\n", Table{Typed: true, OmitEmpty: true}, []string{`{"a":"x"}`}, nil, nil},
		{"a heading without its type", "a.string(),qty\nx,5\n", Table{Typed: true}, nil, nil, []string{`f:1: the column "qty" names no type`}},
		{"an unknown type", "a.number()\n5\n", Table{Typed: true}, nil, nil, []string{`f:1: the column "a.number()" names no type`}},
		{"given names", "1,2\n3,4\n", Table{Fields: []string{"a", "b"}}, []string{`{"a":"1","b":"2"}`, `{"a":"3","b":"4"}`}, []string{"f:1", "f:2"}, nil},
		{"nested names", "name,pos.lat,pos.lng,pos.src.by,kind\nX,1,2,me,k\n", Table{}, []string{`{"name":"X","pos":{"lat":"1","lng":"2","src":{"by":"me"}},"kind":"k"}`}, nil, nil},
		{"nested and empty", "name,pos.lat\nX,\n", Table{OmitEmpty: true}, []string{`{"name":"X"}`}, nil, nil},
		{"a name twice", "a,b,a\n1,2,3\n", Table{}, nil, nil, []string{`f:1: two columns have the name "a"`}},
		{"a value and a document", "a,a.b\n1,2\n", Table{}, nil, nil, []string{`f:1: column "a" cannot be both`}},
		{"an empty name", "a,,c\n1,2,3\n", Table{}, nil, nil, []string{"f:1: the name of column 2 is empty"}},
		{"byte-order mark", "\xEF\xBB\xBFid,name\n1,x\n", Table{}, []string{`{"id":"1","name":"x"}`}, nil, nil},
		{"byte-order mark and quotes", "\xEF\xBB\xBF\"id\",\"name\"\r\n1,x\r\n", Table{}, []string{`{"id":"1","name":"x"}`}, nil, nil},
		{"UTF-16", "\xFF\xFEi\x00d\x00", Table{}, nil, nil, []string{"f:1: the file is UTF-16"}},
		{"Latin-1", "name,city\nx,M\xfcnchen\ny,Bonn\n", Table{}, []string{`{"name":"y","city":"Bonn"}`}, nil, []string{"f:2:3: the text is not UTF-8"}},
		{"too few and too many cells", "a,b,c\n1,2\n1,2,3\n1,2,3,4\n", Table{}, []string{`{"a":"1","b":"2","c":"3"}`}, []string{"f:3"}, []string{"f:2: the row has 2 cells; 3 are expected", "f:4: the row has 4 cells"}},
		{"half a row at the end", "a,b,c\n1,2,3\n4,5", Table{}, []string{`{"a":"1","b":"2","c":"3"}`}, nil, []string{"f:3: the row has 2 cells"}},
		{"too few cells, leniently", "a,b,c\n1,2\n", Table{Lenient: true}, []string{`{"a":"1","b":"2"}`}, nil, nil},
		{"too many cells, leniently", "a,b\n1,2,3\n", Table{Lenient: true}, nil, nil, []string{"f:2: the row has 3 cells"}},
		{"bare quotes", "a,b\n1,UNIT 7 \"B\"\n3,4\n", Table{}, nil, nil, []string{"f:2:10: a quote within a cell"}},
		{"bare quotes, leniently", "a,b\n1,UNIT 7 \"B\"\n", Table{Lenient: true}, []string{`{"a":"1","b":"UNIT 7 \"B\""}`}, nil, nil},
		{"text behind quotes", "a,b\n\"ä\",\"x\"y\n", Table{}, nil, nil, []string{"f:2:7: a quote within a cell"}},
		{"doubled quotes", "a\n\"UNIT 7 \"\"B\"\"\"\n", Table{}, []string{`{"a":"UNIT 7 \"B\""}`}, nil, nil},
		{"line breaks in cells", "a,b\n\"x\r\ny\",1\n\"p\nq\r\n\r\nr\r\",2\n3\n", Table{}, []string{`{"a":"x\r\ny","b":"1"}`, `{"a":"p\nq\r\n\r\nr\r","b":"2"}`}, []string{"f:2", "f:4"}, []string{"f:8: the row has 1 cell"}},
		{"a bad cell behind a line break", "a.string(),b.int32()\n\"x\r\nyä\",x\n", Table{Typed: true}, nil, nil, []string{"f:3:5: column \"b\""}},
		{"CR LF between rows, with a type", "a.int32(),b.int32()\r\n1,2\r\n3,4\r\n", Table{Typed: true}, []string{`{"a":{"$numberInt":"1"},"b":{"$numberInt":"2"}}`, `{"a":{"$numberInt":"3"},"b":{"$numberInt":"4"}}`}, nil, nil},
		{"the end within quotes", "a,b\n1,2\n3,\"x\ny", Table{}, []string{`{"a":"1","b":"2"}`}, nil, []string{"f:3: the file ends within a quoted cell"}},
		{"another separator", "a;b\n1,5;2\n", Table{Separator: ';'}, []string{`{"a":"1,5","b":"2"}`}, nil, nil},
		{"the wrong separator", "a;b\n1;2\n", Table{}, []string{`{"a;b":"1;2"}`}, nil, nil},
		{"blank lines", "a,b\n\n1,2\n\r\n3,4\n", Table{}, []string{`{"a":"1","b":"2"}`, `{"a":"3","b":"4"}`}, []string{"f:3", "f:5"}, nil},
		{"no line break at the end", "a,b\n1,2", Table{}, []string{`{"a":"1","b":"2"}`}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.text, CSV, c.table, c.documents, c.places, c.problems) })
	}
}

func TestTSV(t *testing.T) {
	for _, c := range []struct {
		name, text                  string
		table                       Table
		documents, places, problems []string
	}{
		{"plain", "a\tb\n1\t\"2\"\n3\t4", Table{}, []string{`{"a":"1","b":"\"2\""}`, `{"a":"3","b":"4"}`}, []string{"f:2", "f:3"}, nil},
		{"CR LF and blank lines", "a\tb\r\n\r\n1\t2\r\n", Table{}, []string{`{"a":"1","b":"2"}`}, []string{"f:3"}, nil},
		{"ragged", "a\tb\n1\n1\t2\t3\n", Table{}, nil, nil, []string{"f:2: the row has 1 cell; 2 are expected", "f:3: the row has 3 cells"}},
		{"a bad cell", "a.string()\tb.int32()\nä\tx\n", Table{Typed: true}, nil, nil, []string{"f:2:3: column \"b\""}},
		{"Latin-1", "a\nM\xfcnchen\nBonn\n", Table{}, []string{`{"a":"Bonn"}`}, nil, []string{"f:2: the text is not UTF-8"}},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.text, TSV, c.table, c.documents, c.places, c.problems) })
	}
}

// A row that is longer than any buffer is read whole, and one without an end does not fill the memory.
func TestLongRows(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	expect(t, "a,b\n\""+long+"\r\n"+long+"\",1\n2,3\n", CSV, Table{}, []string{`{"a":"` + long + `\r\n` + long + `","b":"1"}`, `{"a":"2","b":"3"}`}, []string{"f:2", "f:4"}, nil)

	r, err := Open("f", strings.NewReader("a\nx\n\""+strings.Repeat("y", MaxText+1<<20)+"\"\n"), CSV, Table{})
	var problems []string
	for _, err := range all(r, err) {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) != 1 || !strings.HasPrefix(problems[0], "f:3: the text of a row has more than") {
		t.Errorf("%q", problems)
	}
}
