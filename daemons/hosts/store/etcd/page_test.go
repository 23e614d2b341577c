// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/docpage"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// storeOfThePage makes the certificates with the commands of docs/hosts.md, in dir, and returns the URL that
// the page writes to hosts.env.
func storeOfThePage(t *testing.T, dir string) (url string) {
	t.Helper()
	root, err := reftest.Root()
	must(t, err)
	text, err := os.ReadFile(root + "/docs/hosts.md")
	must(t, err)
	steps, err := docpage.Parse(string(text))
	must(t, err)
	for _, s := range steps {
		if strings.HasPrefix(s.Command, "openssl ") {
			cmd := exec.Command("sh", "-ec", strings.ReplaceAll(s.Command, "IP:10.0.0.1", "IP:127.0.0.1"))
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("line %d: %v\n%s", s.Line, err, out)
			}
		}
		if _, rest, ok := strings.Cut(s.Command, "PATCHBAY_STORE='"); ok {
			url, _, _ = strings.Cut(rest, "'")
		}
	}
	return url
}

// TestPage: a store as docs/hosts.md makes it serves a host with the page's certificate, and nobody
// else, such as a container that reaches its port.
func TestPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := storeOfThePage(t, dir)
	at := func(name string) string { return dir + "/" + name }
	server := newServer(t, "--cert-file="+at("etcd.pem"), "--key-file="+at("etcd.key"), "--trusted-ca-file="+at("ca.pem"), "--client-cert-auth")
	url = strings.NewReplacer("10.0.0.1,10.0.0.2,10.0.0.3", server.endpoint, "/etc/patchbay", dir).Replace(url)
	for _, c := range []struct {
		url    string
		serves bool
	}{
		{url, true},
		{strings.SplitN(url, "&", 2)[0], false}, // no certificate
		{"etcd://" + server.endpoint + "/prod", false},
	} {
		scheme, rest, _ := strings.Cut(c.url, "://")
		o, err := options(rest)
		must(t, err)
		if o.TLS.On, o.Timeout = scheme == "etcds", patience; !c.serves {
			o.Timeout = 3 * time.Second // of a call that fails
		}
		_, _, err = open(t, o).Networks().List(t.Context(), "")
		if (err == nil) != c.serves {
			t.Errorf("%s: %v", c.url, err)
		}
	}
}
