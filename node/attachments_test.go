// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/record"
)

// A container that is not a pod has the labels of its configuration, also if these are none. Those of a
// pod come from the API.
func TestAttached(t *testing.T) {
	for _, labels := range []map[string]string{nil, {}, {"app": "web"}} {
		data, err := lightjson.Marshal(&record.Policed{Namespace: "shop", Labels: labels})
		p := new(record.Policed)
		if err := errors.Join(err, lightjson.Unmarshal(data, p)); err != nil {
			t.Fatal(err)
		}
		if got := attached(p).Labels; (got == nil) != (labels == nil) || len(got) != len(labels) {
			t.Errorf("%v: got %v from %s", labels, got, data)
		}
	}
}
