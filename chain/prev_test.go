// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"encoding/json"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// The second part of a chain starts from the result of the first part, which ran elsewhere.
func TestAddGoesOnFromAResult(t *testing.T) {
	b := newBench(t)
	a := attachment
	a.Prev = &spec.Result{CNIVersion: "1.0.0", Interfaces: []spec.Interface{{Name: "before"}}}
	result, err := b.Add(t.Context(), chaintest.List(t, three), a)
	if err != nil {
		t.Fatal(err)
	}
	var in struct{ PrevResult *spec.Result }
	if err := json.Unmarshal(b.Calls()[0].Stdin, &in); err != nil {
		t.Fatal(err)
	}
	if in.PrevResult == nil || len(in.PrevResult.Interfaces) != 1 || len(result.Interfaces) != 4 {
		t.Errorf("the first plugin got %+v, the result is %+v", in.PrevResult, result)
	}
}
