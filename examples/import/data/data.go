// Package data holds the places that the examples have built in. SOURCE.md says where they are from.
package data

import _ "embed" // for Places

// Places are the places of the Nordic countries, one JSON document a line:
//
//	{"name":"Vrå","country":"DK","region":"North Denmark","lat":57.3537,"lng":9.94176}
//
//go:embed nordic-places.ndjson
var Places []byte
