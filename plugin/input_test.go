// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// spaces is an input that has no end. The test fails if a plugin reads more of it than room.
type spaces struct{ room int }

func (s *spaces) Read(p []byte) (int, error) {
	if s.room -= len(p); s.room < 0 {
		return 0, errors.New("the plugin reads on and on")
	}
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}

// A configuration that has no end does not fill the node's memory.
func TestEndlessInput(t *testing.T) {
	const most = 64 << 20
	p := &plugin.Plugin{Name: "reader"}
	env := map[string]string{"CNI_COMMAND": string(spec.Add), "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/p"}
	var out bytes.Buffer
	code := plugin.Run(t.Context(), p, plugin.NewSession(nil), plugin.Stdio{
		Getenv: func(name string) string { return env[name] }, Stdin: &spaces{2 * most}, Stdout: &out, Stderr: io.Discard,
	})
	if err, ok := spec.ParseError(out.Bytes()); code != 1 || !ok || err.Code != spec.CodeDecoding || !strings.Contains(err.Msg, "standard input is longer than 67108864 bytes") {
		t.Errorf("%d %s", code, &out)
	}
}
