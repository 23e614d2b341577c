// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
)

// What an agent saves, it reads again.
func TestEndpointText(t *testing.T) {
	four, six := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("fd00:10::7")
	for want, e := range map[string]SliceEndpoint{
		`"10.244.1.7 node-3 rs"`: {Address: four, Node: "node-3", Ready: true, Serving: true},
		`"fd00:10::7 node-3 st"`: {Address: six, Node: "node-3", Serving: true, Terminating: true},
		`"10.244.1.7  t"`:        {Address: four, Terminating: true},
		`"10.244.1.7 node-3 "`:   {Address: four, Node: "node-3"},
		`"10.244.1.7  r {\"ForZones\":[\"a b\"],\"ForNodes\":null}"`: {Address: four, Ready: true, Hints: &Hints{ForZones: []string{"a b"}}},
	} {
		text, err := json.Marshal(e)
		if err != nil || string(text) != want {
			t.Errorf("%+v: got %s, %v, want %s", e, text, err, want)
		}
		var got SliceEndpoint
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%s: read %+v, %v", text, got, err)
		}
	}
}
