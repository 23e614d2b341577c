// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// FuzzConfiguration checks that no configuration makes a plugin panic. It is a dry ADD, so it calls
// no driver.
func FuzzConfiguration(f *testing.F) {
	ns := nettest.NewNS(f, "fuzz")
	for _, fields := range []string{
		`"driver":"lab","options":{"a":"b"},"ipam":{"type":"cnm-ipam","driver":"lab","pools":[{"subnet":"10.88.0.0/24","ipRange":"10.88.0.0/25","gateway":"10.88.0.1","auxAddresses":{"r":"10.88.0.2"}},{"ipv6":true}]}`,
		`"socket":"/x.sock","internal":true,"ipv6":true,"networkId":"n","emulateSwarm":true,"nodeAddress":"192.0.2.1","nodes":["192.0.2.2"],"ipam":{"type":"cnm-ipam","url":"tcp://h:1","tls":{"caFile":"/ca"}}`,
		`"url":"unix:///x","runtimeConfig":{"mac":"02:00:00:00:00:01","ips":["10.0.0.1/24"],"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"UDP","hostIP":"::1"}]}`,
		`"driver":"lab","args":{"cni":{"mac":"x","ips":["fd00::1"]}},"dns":{"nameservers":["1.1.1.1"]},"ipam":{"type":"cnm-ipam","driver":"lab","routes":[{"dst":"0.0.0.0/0"}]}`,
		`"driver":"lab","ipam":{"type":"cnm"}`, // found by fuzzing: cnm called itself without end
		`"driver":null`, `"ipam":[]`, `"ipam":{"type":"cnm-ipam","pools":[null]}`,
	} {
		f.Add(fields)
	}
	f.Fuzz(func(t *testing.T, fields string) {
		for _, p := range Plugins() {
			b := plugin.Builtin{NewSession: func() *plugin.Session {
				s := plugin.NewSession(Plugins())
				s.Stderr, s.Dry = io.Discard, func(string) {}
				return s
			}}
			conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fuzz","type":%q,%s}`, p.Name, fields)
			call := &spec.Call{Verb: spec.Add, ContainerID: "c", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"}, Config: []byte(conf)}
			if _, err := b.Invoke(context.Background(), p.Name, call); err != nil && strings.Contains(err.Error(), "panicked") {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
	})
}

// FuzzState checks that any content of the state files leaves the list of networks and the
// replacement of Docker's API working.
func FuzzState(f *testing.F) {
	const network = `{"driver":{"name":"lab","url":"unix:///x"},"hash":"h","request":{"NetworkID":"n","Options":{"com.docker.network.generic":{"a":"b"}},"IPv4Data":[{"AddressSpace":"s","Pool":"10.0.0.0/8","Gateway":"10.0.0.1/8"}]},"created":true}`
	const pools = `{"driver":{"url":"tcp://h:1"},"hash":"h","space":"s","pools":[{"request":{"Pool":"10.0.0.0/8"},"id":"p","prefix":"10.0.0.0/8","has":"10.0.0.1/8","reserved":true,"done":true}]}`
	const attachment = `{"driver":{"name":"lab"},"networkId":"n","endpointId":"e","created":true,"link":{"name":"x"},"interface":{"Address":"10.0.0.2/8","AddressIPv6":"","MacAddress":""},"addresses":[{"poolId":"p","address":"10.0.0.2/8"}]}`
	f.Add([]byte(network), []byte(pools), []byte(attachment))
	f.Add([]byte(`{}`), []byte(`{"pools":[null]}`), []byte(`{"ended":true}`))
	f.Add([]byte(`{"request":{}}`), []byte(`[]`), []byte(`null`))
	f.Add([]byte(`{`), []byte(``), []byte(`7`))
	dir := f.TempDir()
	a := &app{stdout: io.Discard, stderr: io.Discard, paths: paths.From(func(string) string { return dir })}
	s := remote.Open(dir)
	o := owner.Of("net", "c", "eth0")
	f.Fuzz(func(t *testing.T, network, pools, attachment []byte) {
		header := func(state []byte) []byte { return fmt.Appendf(nil, `{"schema":1,"name":"net","state":%s}`, state) }
		record := fmt.Appendf(nil, `{"schema":1,"plugin":"cnm","owner":%q,"network":"net","containerID":"c","ifname":"eth0","remote":%s}`, o, attachment)
		for path, data := range map[string][]byte{
			"networks/net.json": header(network), "pools/net.json": header(pools), "attachments/net/" + string(o) + ".cnm": record,
		} {
			path = filepath.Join(s.Path, path)
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			must(t, os.WriteFile(path, data, 0o600))
		}
		a.networks() //nolint:errcheck // it may report broken files
		api := &api{s}
		for _, path := range []string{"/networks", "/networks/net", "/containers/json", "/containers/c/json", "/info"} {
			w := httptest.NewRecorder()
			api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if body := bytes.TrimSpace(w.Body.Bytes()); len(body) == 0 {
				t.Errorf("%s: status %d and nothing", path, w.Code)
			}
		}
	})
}

// FuzzAPI sends any request to the replacement of Docker's API, which must answer.
func FuzzAPI(f *testing.F) {
	for _, path := range []string{"/_ping", "/v1.44/networks/x", "/v1.", "/v1.99", "//", "/networks//json", "/containers/", "/version", "*"} {
		f.Add("GET", path)
	}
	api := &api{remote.Open(f.TempDir())}
	f.Fuzz(func(t *testing.T, verb, path string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		ctx, cancel := context.WithCancel(r.Context())
		cancel() // ends /events at once
		r.Method, r.URL.Path = verb, path
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r.WithContext(ctx))
		if w.Code < 200 || w.Code > 499 {
			t.Errorf("%s %s: %d", verb, path, w.Code)
		}
	})
}
