// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"strings"
	"testing"
)

func TestNodeRefuses(t *testing.T) {
	dir := dockerEnv(t)
	cluster := "--cluster-cidr=10.244.0.0/16"
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "--cluster-cidr is missing"},
		{[]string{"--cluster-cidr=10.244.0.1/16"}, 2, "want the prefix of a network"},
		{[]string{cluster, "--cluster-cidr=10.244.128.0/17"}, 2, "10.244.128.0/17 overlaps 10.244.0.0/16"},
		{[]string{cluster, "--transport=pigeon"}, 2, "pigeon"},
		{[]string{cluster, "--containers-namespace=Shop"}, 2, "RFC 1123 label"},
		{[]string{cluster, "--containers-namespace=shop", "--containers-label=app=a b"}, 2, "a valid label"},
		{[]string{cluster, "--containers-label=app=web"}, 2, "--containers-label needs --containers-namespace"},
		{[]string{cluster, "--program=" + dir + "/none"}, 1, "name it with --program"},
		{[]string{cluster, "--cni-bin-dir=", "--listen=192.0.2.77:1"}, 1, "name another address with --listen"},
		{[]string{"clear"}, 2, "clear"},
		{[]string{"clean", "x"}, 2, `unexpected argument "x"`},
		{[]string{"ls", "x"}, 2, `unexpected argument "x"`},
		{[]string{"ls"}, 1, "has not heard of any Node yet"},
	} {
		var log bytes.Buffer
		code := Main(append([]string{"node"}, c.args...), &log)
		if code != c.code || !strings.Contains(log.String(), c.says) {
			t.Errorf("%v: %d, %s", c.args, code, &log)
		}
	}
}
