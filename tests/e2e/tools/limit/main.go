// limit is an extender that only takes time on the wire: it answers each call of filter with the first
// node name, and bind writes the Binding that kube-scheduler asks for. Benches compare ours with it.
// The path `all` is a filter that answers with all names; prioritize scores none of them.
//
//	limit PORT                               filter alone
//	limit PORT SERVER CA-FILE TOKEN-FILE     bind too, at this API server
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

const bindersAtOnce = 64

var names = []byte(`"NodeNames":[`)

type target struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

type binding struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Target     target            `json:"target"`
}

// filter answers with the first of the node names. The names are the last field of ExtenderArgs, so the
// pod before them is not decoded.
func filter(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	chosen := []string{}
	if at := bytes.LastIndex(body, names); at >= 0 {
		rest := body[at+len(names):]
		if end := bytes.IndexAny(rest, ",]"); end > 0 {
			var name string
			if json.Unmarshal(rest[:end], &name) == nil {
				chosen = append(chosen, name)
			}
		}
	}
	answer(w, map[string][]string{"NodeNames": chosen})
}

// all answers with all node names.
func all(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	chosen := json.RawMessage("[]")
	if at := bytes.LastIndex(body, names); at >= 0 {
		rest := body[at+len(names)-1:]
		chosen = rest[:bytes.IndexByte(rest, ']')+1]
	}
	answer(w, map[string]json.RawMessage{"NodeNames": chosen})
}

func prioritize(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(w, []struct{}{})
}

// binder writes Bindings at an API server.
type binder struct {
	server, authorization string
	client                *http.Client
}

func newBinder(server, caFile, tokenFile string) (*binder, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		MaxIdleConnsPerHost: bindersAtOnce,
		ForceAttemptHTTP2:   true,
	}
	bearer := "Bearer " + strings.TrimSpace(string(token))
	return &binder{server, bearer, &http.Client{Transport: transport}}, nil
}

func (b *binder) bind(w http.ResponseWriter, r *http.Request) {
	var args struct{ PodName, PodNamespace, PodUID, Node string }
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	message := ""
	if err := b.write(args.PodNamespace, binding{
		APIVersion: "v1",
		Kind:       "Binding",
		Metadata:   map[string]string{"name": args.PodName, "uid": args.PodUID},
		Target:     target{"v1", "Node", args.Node},
	}); err != nil {
		message = err.Error()
	}
	answer(w, map[string]string{"Error": message})
}

func (b *binder) write(namespace string, object binding) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	url := b.server + "/api/v1/namespaces/" + namespace + "/pods/" + object.Metadata["name"] + "/binding"
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", b.authorization)
	reply, err := b.client.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode >= 300 {
		err = errors.New(reply.Status + ": " + string(text))
	}
	return err
}

func answer(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(document); err != nil {
		log.Print(err)
	}
}

func main() {
	if len(os.Args) == 5 {
		binder, err := newBinder(os.Args[2], os.Args[3], os.Args[4])
		if err != nil {
			log.Fatal(err)
		}
		http.HandleFunc("/gpushare-scheduler/bind", binder.bind)
	}
	http.HandleFunc("/gpushare-scheduler/all", all)
	http.HandleFunc("/gpushare-scheduler/prioritize", prioritize)
	http.HandleFunc("/", filter)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
