// A chat with an agent: index.html#gateway=http://127.0.0.1:8080&agent=ops&token=TOKEN&chat=my-first-chat
import { useChat } from '@ai-sdk/react';
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';
import { createRoot } from 'react-dom/client';

const { gateway, agent, token, chat } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

const transport = new DefaultChatTransport({
  api: `${gateway}/api/chat`,
  headers: { Authorization: `Bearer ${token}` },
  body: { agent },
});

function Part({ part, answer }) {
  if (part.type === 'text') return <p>{part.text}</p>;
  if (part.type === 'reasoning') return <p><i>{part.text}</i></p>;
  if (part.type !== 'dynamic-tool') return null;
  const { approval, state, toolName, input, output, errorText } = part;
  return (
    <pre data-state={state}>
      {toolName} {JSON.stringify(input)}{'\n'}{output ?? errorText ?? approval?.descriptor?.preview}
      {state === 'approval-requested' && ['Approve', 'Deny'].map(word => (
        <button key={word} onClick={() => answer({ id: approval.id, approved: word === 'Approve' })}>{word}</button>
      ))}
    </pre>
  );
}

function Chat() {
  const { messages, sendMessage, regenerate, stop, status, error, addToolApprovalResponse } = useChat({
    id: chat,
    transport,
    resume: true,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const submit = event => {
    event.preventDefault();
    sendMessage({ text: new FormData(event.target).get('text') });
    event.target.reset();
  };
  return (
    <>
      {messages.map(message => (
        <section key={message.id} className={message.role}>
          <b>{message.role}</b>
          {message.parts.map((part, at) => <Part key={at} part={part} answer={addToolApprovalResponse} />)}
        </section>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={submit}>
        <input name="text" autoFocus /> <button>Send</button>{' '}
        <button type="button" onClick={() => regenerate()}>Again</button>{' '}
        <button type="button" onClick={stop}>Stop</button> <output>{status}</output>
      </form>
    </>
  );
}

createRoot(document.body).render(<Chat />);
