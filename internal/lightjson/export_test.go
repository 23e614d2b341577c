// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lightjson

import (
	"encoding/json"
	"reflect"
)

// Common reports whether this package reads a document into v, and writes v, without encoding/json.
func Common(data []byte, v any) (reads, writes bool) {
	d := decoder{scanner{data: data}}
	reads = json.Valid(data) && d.value(reflect.ValueOf(v).Elem())
	e := encoder{html: true}
	return reads, e.value(reflect.ValueOf(v))
}
