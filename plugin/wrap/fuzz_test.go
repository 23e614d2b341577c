// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"testing"
)

// FuzzPatch applies any patch. The outcome is an error or a JSON object.
func FuzzPatch(f *testing.F) {
	for _, seed := range [][3]string{
		{`{"a":[1,2]}`, `{"a":null,"b":{"c":1}}`, `[{"op":"add","path":"/b/d","value":[]},{"op":"move","from":"/b","path":"/e"}]`},
		{`{"a":{"b":1}}`, ``, `[{"op":"copy","from":"/a","path":"/a/c"},{"op":"test","path":"/a/b","value":1},{"op":"remove","path":"/a/b"}]`},
		{`{"a":[]}`, `{}`, `[{"op":"add","path":"/a/999999999","value":1}]`},
		{`{}`, `{"":{"":null}}`, `[{"op":"replace","path":"","value":[]}]`},
		{`{"a":null}`, `{"a":{"b":null}}`, `[{"op":"add","path":"/a/-","value":null}]`},
		{`{"a":"\ud800"}`, `{"~1":1}`, `[{"op":"add","path":"/~01","value":1e400}]`},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, doc, merge, operations string) {
		if !json.Valid([]byte(doc)) || !isObject([]byte(doc)) || !json.Valid([]byte(merge)) && merge != "" || !json.Valid([]byte(operations)) && operations != "" {
			return // the decoder of Conf accepts only valid patches
		}
		p := &Patch{Merge: json.RawMessage(merge), Patch: json.RawMessage(operations)}
		if p.validate() != nil {
			return
		}
		out, err := p.apply([]byte(doc))
		var object map[string]json.RawMessage
		if err == nil && json.Unmarshal(out, &object) != nil {
			t.Errorf("%s with %s and %s is %s", doc, merge, operations, out)
		}
	})
}
