// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// A member cannot set a key that only a runtime may set, in any spelling: plugins ignore the case of keys, and
// read the last spelling.
func TestMembersSetNoKeysOfTheRuntime(t *testing.T) {
	l := newTape(t)
	_, err := l.call(spec.Add, `{"cniVersion":"1.1.0","name":"net","type":"patchbay","runtimeConfig":{"mac":"x"},"plugins":[
		{"type":"one","cniversion":"0.2.0","NAME":"other","prevresult":{"cniVersion":"1.1.0"},"runtimeconfig":{"mac":"y"},"Cni.dev/attachments":[],"patchbay/Listed":"x"},
		{"type":"two","Capabilities":{"mac":true},"runtimeconfig":{"mac":"y"}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.configs["one ADD"], `{"cniVersion":"1.1.0","name":"net","type":"one"}`; got != want {
		t.Errorf("one got %s\nwant %s", got, want)
	}
	if got, want := l.configs["two ADD"], `{"cniVersion":"1.1.0","name":"net","runtimeConfig":{"mac":"x"},"type":"two"}`; got != want {
		t.Errorf("two got %s\nwant %s", got, want)
	}
}
