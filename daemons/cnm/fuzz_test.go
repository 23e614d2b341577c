// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzHandler sends any request. The answer is JSON or an HTTP status, and nothing panics.
func FuzzHandler(f *testing.F) {
	for _, list := range recordings(f) {
		for _, e := range list {
			f.Add(e.method, e.body)
		}
	}
	f.Fuzz(func(t *testing.T, method, body string) {
		d := &scripted{answer: "{}"}
		h := &Handler{Network: d, IPAM: d}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.URL.Path = "/" + method
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if strings.Contains(w.Body.String(), "panicked") {
			t.Error(w.Body)
		}
	})
}

// FuzzAnswer gives any answer of a driver to any call. The client returns the right kind of
// error, and only valid addresses.
func FuzzAnswer(f *testing.F) {
	for _, list := range recordings(f) {
		for _, e := range list {
			f.Add(e.status, e.answer)
		}
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		join, created, pool, address := new(JoinResponse), new(CreateEndpointResponse), new(RequestPoolResponse), new(RequestAddressResponse)
		for _, out := range []any{
			nil, join, created, pool, address, new(Manifest), new(Capabilities), new(GwAllocCheckResponse),
			new(AllocateNetworkResponse), new(EndpointInfo), new(IPAMCapabilities), new(AddressSpaces),
		} {
			a := answer{status, []byte(body)}
			var answered *DriverError
			err := a.decode("x", out)
			if err != nil && !errors.As(err, &answered) && !errors.Is(err, ErrBadAnswer) {
				t.Error(err)
			}
			IsMissing(err)
			SaysExists(err)
		}
		if p := address.Address; p.IsValid() && p.Bits() > p.Addr().BitLen() {
			t.Error(p)
		}
	})
}

// FuzzSpec reads any content of a .spec or .json file. The result is a client, or an error with
// the reason.
func FuzzSpec(f *testing.F) {
	for _, text := range []string{
		"tcp://127.0.0.1:1", "unix:///run/x.sock", "http://[::1]:5", "unix://x", "://", "%zz",
		`{"Name":"d","Addr":"https://127.0.0.1:6","TLSConfig":{"InsecureSkipVerify":true,"CAFile":"/nonexistent","CertFile":"/c","KeyFile":"/k"}}`,
		`{"Addr":"tcp://h:1","TLSConfig":null}`, `{"addr":7}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, ext := range []string{".spec", ".json"} {
			at, err := parseSpec("x", ext, []byte(text))
			if err != nil {
				continue
			}
			if at.TLS != nil {
				at.TLS.CAFile, at.TLS.CertFile, at.TLS.KeyFile = "", "", "" // so that the client opens no file of this machine
			}
			if c, err := NewClient(at, ClientOptions{}); err == nil && !strings.HasPrefix(c.base, "http://") && !strings.HasPrefix(c.base, "https://") {
				t.Errorf("%q: %q", text, c.base)
			}
		}
	})
}
